import pytest
import torch
from torch import Tensor

from eagle3.ops.own_keys import own_keys_torch, own_keys_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]
SCALE = 0.4


def drawn(shape: tuple[int, int, int, int], steps: int, dtype: torch.dtype) -> list[Tensor]:
    """q, first, lse, keys and values; slices of wider tensors as a trainer has them."""
    rows, n_kv, group, dim = shape
    torch.manual_seed(dim)
    heads = n_kv * group
    qk = torch.randn(rows, heads + n_kv, dim, device=DEVICE).to(dtype)
    first = torch.randn(heads, rows, dim, device=DEVICE).to(dtype).transpose(0, 1)
    lse = torch.randn(rows, heads, device=DEVICE, dtype=torch.promote_types(dtype, torch.float32))
    own = [torch.randn(rows, n_kv + 2, dim, device=DEVICE).to(dtype)[:, 2:] for _ in range(2 * steps)]
    return [x.requires_grad_(True) for x in (qk[:, :heads].detach(), first, lse, *own)]


def test_the_reference_is_one_softmax_over_all_keys() -> None:
    rows, n_kv, group, dim, others = 3, 2, 2, 4, 5
    q, _, _, *own = drawn((rows, n_kv, group, dim), 2, torch.float64)
    key, value = torch.randn(2, others, n_kv * group, dim, dtype=torch.float64, device=DEVICE)
    scores = torch.einsum("thd,ohd->tho", q, key) * SCALE
    first = torch.einsum("tho,ohd->thd", scores.softmax(2), value)
    got = own_keys_torch(q, first, scores.logsumexp(2), own[:2], own[2:], SCALE)
    for t in range(rows):
        for h in range(n_kv * group):
            keys = torch.cat([key[:, h], torch.stack([k[t, h // group] for k in own[:2]])])
            values = torch.cat([value[:, h], torch.stack([v[t, h // group] for v in own[2:]])])
            want = (keys @ q[t, h] * SCALE).softmax(0) @ values
            torch.testing.assert_close(got[t, h], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("shape", [(5, 1, 1, 16), (4, 2, 3, 24), (3, 3, 4, 64)])
@pytest.mark.parametrize("steps", [1, 4])
def test_triton_equals_torch_there_and_back(
    dtype: torch.dtype, shape: tuple[int, int, int, int], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = drawn(shape, steps, dtype)
    wide = [x.detach().double().requires_grad_(True) for x in given]
    before = [x.detach().clone() for x in given]
    empty, like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: like(*a, **k).fill_(torch.nan))
    got = own_keys_triton(*given[:3], given[3 : 3 + steps], given[3 + steps :], SCALE)
    back = torch.randn(got.shape[1], got.shape[0], got.shape[2], device=DEVICE).to(dtype).transpose(0, 1)
    grads = torch.autograd.grad(got, given, back)
    monkeypatch.undo()
    want = own_keys_torch(*wide[:3], wide[3 : 3 + steps], wide[3 + steps :], SCALE)
    assert got.dtype == dtype
    close = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 20 * torch.finfo(dtype).eps}
    torch.testing.assert_close(got.double(), want, **close)
    for ours, theirs in zip(grads, torch.autograd.grad(want, wide, back.double()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, **close)
    for x, kept in zip(given, before, strict=True):
        assert torch.equal(x, kept)
