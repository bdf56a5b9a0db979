import pytest
import torch
from torch import Tensor

from eagle3.ops.soft_cross_entropy import soft_cross_entropy_torch, soft_cross_entropy_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]


def drawn(rows: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits and labels whose rows lie further apart than they are long (NaN between), and which rows count."""
    torch.manual_seed(size)
    logits = torch.full((rows, size + 3), torch.nan, dtype=dtype, device=DEVICE)
    p = torch.full((rows, size + 2), torch.nan, device=DEVICE)
    logits[:, :size] = torch.randn(rows, size, device=DEVICE) * 3
    p[:, :size] = torch.randn(rows, size, device=DEVICE).mul(2).softmax(1)
    return logits[:, :size], p[:, :size], torch.arange(rows, device=DEVICE) % 3 != 1


def test_the_reference_is_the_loss_and_its_gradient() -> None:
    logits, p, counts = drawn(7, 13, torch.float64)
    given, p = logits.clone().requires_grad_(True), p.double() / p.double().sum(1, keepdim=True)
    wanted = -(p * given.log_softmax(1)).sum(1) * counts
    losses, best = soft_cross_entropy_torch(logits, p, counts, gradient=True)
    torch.testing.assert_close(losses, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(best, given.argmax(1))
    torch.testing.assert_close(logits, torch.autograd.grad(wanted.sum(), given)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (5, 37), (3, 4096), (4, 9000)])
@pytest.mark.parametrize("gradient", [True, False])
def test_triton_equals_torch(
    dtype: torch.dtype, rows: int, size: int, gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, p, counts = drawn(rows, size, dtype)
    kept, theirs = logits.clone(), logits.clone()
    want, best = soft_cross_entropy_torch(theirs, p, counts, gradient=gradient)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(-7))
    losses, ours = soft_cross_entropy_triton(logits, p, counts, gradient=gradient)
    monkeypatch.undo()
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours, best)
    if gradient:
        torch.testing.assert_close(logits, theirs, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
        assert not logits[~counts].any()
    else:
        assert torch.equal(logits, kept)
        assert torch.equal(theirs, kept)


@pytest.mark.parametrize("kernel", [soft_cross_entropy_torch, soft_cross_entropy_triton])
def test_ties_go_to_the_lowest_index(kernel: object) -> None:
    logits = torch.zeros(3, 9000, device=DEVICE)
    logits[1, [8999, 4100, 4]] = 1.0
    logits[2, [8999, 4100]] = 1.0
    p, counts = torch.full((3, 9000), 1 / 9000, device=DEVICE), torch.ones(3, dtype=torch.bool, device=DEVICE)
    assert callable(kernel)
    assert kernel(logits, p, counts, gradient=False)[1].tolist() == [0, 4, 4100]


def test_a_row_that_does_not_count_may_hold_anything_and_one_that_counts_tells() -> None:
    logits, p, counts = drawn(3, 20, torch.float32)
    counts[:] = torch.tensor([True, False, True])
    logits[1:, 5] = torch.nan
    for kernel in (soft_cross_entropy_torch, soft_cross_entropy_triton):
        d_logits = logits.clone()
        losses, best = kernel(d_logits, p, counts, gradient=True)
        assert losses.isnan().tolist() == [False, False, True]
        assert d_logits.isnan().any(1).tolist() == [False, False, True]
        assert losses[1] == 0
        assert 0 <= int(best.min()) <= int(best.max()) < 20


def test_no_rows() -> None:
    logits, p, counts = drawn(0, 5, torch.float32)
    assert [t.shape for t in soft_cross_entropy_triton(logits, p, counts, gradient=True)] == [(0,), (0,)]
