import pytest
import torch

from eagle3.ops.gather import gather_torch, gather_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 24), (3, 1500)])
def test_triton_equals_torch(dtype: torch.dtype, rows: int, width: int) -> None:
    table = torch.randn(11, width, device=DEVICE).to(dtype)
    ids = torch.randint(11, (rows,), device=DEVICE)
    assert torch.equal(gather_triton(table, ids), gather_torch(table, ids))
    assert torch.equal(gather_torch(table, ids), table[ids])
