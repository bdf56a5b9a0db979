import pytest
import torch

from eagle3.ops.pair_norm import pair_norm_torch, pair_norm_triton
from eagle3.ops.rms_norm import rms_norm_torch, rms_norm_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]


def test_the_reference_is_an_embedding_and_two_norms() -> None:
    table, hidden, weights = torch.randn(9, 6).double(), torch.randn(3, 6), torch.randn(2, 6)
    got = pair_norm_torch(torch.tensor([8, 0, 8]), table, hidden, *weights, 1e-5)
    assert torch.equal(got[:, :6], rms_norm_torch(table[[8, 0, 8]].float(), weights[0], 1e-5)[0])
    assert torch.equal(got[:, 6:], rms_norm_torch(hidden, weights[1], 1e-5)[0])


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("stored", [torch.float32, *HALVES])
@pytest.mark.parametrize(("rows", "width"), [(1, 24), (5, 128), (3, 1000)])
def test_triton_equals_torch(dtype: torch.dtype, stored: torch.dtype, rows: int, width: int) -> None:
    torch.manual_seed(width)
    table = torch.randn(11, width, device=DEVICE).to(stored)
    hidden = torch.randn(rows, width + 3, device=DEVICE).to(dtype)[:, :width]  # rows lie further apart
    table[7] = torch.nan
    weights = torch.randn(2, width, device=DEVICE).to(dtype)
    ids = torch.tensor([10, 0, 3, 10, 5], device=DEVICE)[:rows]
    before = table.clone(), hidden.clone()
    want = pair_norm_torch(ids, table, hidden, *weights, 1e-5)
    got = pair_norm_triton(ids, table, hidden, *weights, 1e-5)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    sides = table[ids].to(dtype), hidden
    apart = [rms_norm_triton(x, weight, 1e-5)[0] for x, weight in zip(sides, weights, strict=True)]
    assert torch.equal(got, torch.cat(apart, dim=1)), "a side has the bits of the norm alone"
    assert torch.equal(table.nan_to_num(), before[0].nan_to_num())
    assert torch.equal(hidden, before[1])


def test_a_weight_of_another_type_widens_the_result() -> None:
    table, hidden = torch.randn(4, 8, device=DEVICE).half(), torch.randn(2, 8, device=DEVICE).half()
    weights, ids = torch.randn(2, 8, device=DEVICE), torch.tensor([3, 1], device=DEVICE)
    want = pair_norm_torch(ids, table, hidden, *weights, 1e-5)
    got = pair_norm_triton(ids, table, hidden, *weights, 1e-5)
    assert got.dtype == want.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-3)
