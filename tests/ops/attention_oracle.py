"""A paged pool with known contents, and attention of one row at a time over what a rule lets it see."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

HEADS, KV_HEADS, DIM = 6, 2, 5
SCALE = 0.3


class Paged:
    """B requests of `kv_lens` entries on shuffled pages; NaN wherever no request has written."""

    def __init__(
        self, kv_lens: Sequence[int], page: int, pages_each: int, dtype: torch.dtype = torch.float64
    ) -> None:
        maker = torch.Generator().manual_seed(len(kv_lens) * 100 + page)
        batch = len(kv_lens)
        order = torch.randperm(batch * pages_each, generator=maker) + 1
        self.table = order.view(batch, pages_each).to(torch.int32)
        self.kv = torch.full((batch * pages_each + 1, page, 2 * KV_HEADS * DIM), torch.nan, dtype=dtype)
        self.kv_lens = torch.tensor(kv_lens, dtype=torch.int32)
        self.k = [torch.randn(n, KV_HEADS, DIM, generator=maker, dtype=dtype) for n in kv_lens]
        self.v = [torch.randn(n, KV_HEADS, DIM, generator=maker, dtype=dtype) for n in kv_lens]
        for b, length in enumerate(kv_lens):
            for at in range(length):
                entry = torch.cat((self.k[b][at].flatten(), self.v[b][at].flatten()))
                self.kv[self.table[b, at // page], at % page] = entry

    def attend(self, b: int, q: Tensor, seen: Sequence[int]) -> Tensor:
        """q [n_h, hd] of request b over the entries `seen`."""
        out = torch.empty_like(q)
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = [math.fsum((q[head] * self.k[b][at, shared]).tolist()) * SCALE for at in seen]
            weights = torch.tensor(scores, dtype=q.dtype).softmax(0)
            out[head] = sum(w * self.v[b][at, shared] for w, at in zip(weights, seen, strict=True))
        return out


def queries(rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, HEADS, DIM, generator=torch.Generator().manual_seed(rows), dtype=dtype)
