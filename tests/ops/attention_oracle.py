"""A paged pool with known contents, and attention of one row at a time over what a rule lets it see."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

HEADS, KV_HEADS, DIM = 6, 2, 5
SCALE = 0.3

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # conftest sets TRITON_INTERPRET on a CPU
# Triton's interpreter rounds a bfloat16 product wrongly: that type only on a GPU
KERNEL_TYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")
NEAR = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Paged:
    """B requests of `kv_lens` entries on shuffled pages; NaN wherever no request has written.

    `k` and `v` are the same entries in float64. Page 0 is nobody's.
    """

    def __init__(
        self,
        kv_lens: Sequence[int],
        page: int,
        pages_each: int,
        dtype: torch.dtype = torch.float64,
        *,
        kv_heads: int = KV_HEADS,
        dim: int = DIM,
    ) -> None:
        maker = torch.Generator().manual_seed(len(kv_lens) * 100 + page)
        batch = len(kv_lens)
        order = torch.randperm(batch * pages_each, generator=maker) + 1
        self.table = order.view(batch, pages_each).to(torch.int32)
        self.kv = torch.full((batch * pages_each + 1, page, 2 * kv_heads * dim), torch.nan, dtype=dtype)
        self.kv_lens = torch.tensor(kv_lens, dtype=torch.int32)

        def draw(n: int) -> Tensor:
            made = torch.randn(n, kv_heads, dim, generator=maker, dtype=torch.float64)
            return made.to(dtype).double()

        self.k, self.v = [draw(n) for n in kv_lens], [draw(n) for n in kv_lens]
        for b, length in enumerate(kv_lens):
            for at in range(length):
                entry = torch.cat((self.k[b][at].flatten(), self.v[b][at].flatten()))
                self.kv[self.table[b, at // page], at % page] = entry.to(dtype)

    def attend(self, b: int, q: Tensor, seen: Sequence[int]) -> Tensor:
        """q [n_h, hd] of request b over the entries `seen`."""
        out = torch.empty_like(q)
        heads, kv_heads = q.shape[0], self.k[b].shape[1]
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = [math.fsum((q[head] * self.k[b][at, shared]).tolist()) * SCALE for at in seen]
            weights = torch.tensor(scores, dtype=q.dtype).softmax(0)
            out[head] = sum(w * self.v[b][at, shared] for w, at in zip(weights, seen, strict=True))
        return out


def queries(rows: int, dtype: torch.dtype = torch.float64, *, heads: int = HEADS, dim: int = DIM) -> Tensor:
    return torch.randn(rows, heads, dim, generator=torch.Generator().manual_seed(rows), dtype=dtype)


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """Whatever is allocated but not written inside is NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def assert_same_bits(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """Bits on a GPU; nearly so in the interpreter, where numpy's product of a row depends on its place."""
    torch.testing.assert_close(got, want, rtol=0, atol=0 if DEVICE == "cuda" else NEAR[dtype] / 10)
