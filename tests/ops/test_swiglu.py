import pytest
import torch

from eagle3.ops.swiglu import swiglu_torch, swiglu_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]


def test_the_first_half_gates_the_second() -> None:
    gate, up = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    out = swiglu_torch(torch.cat((gate, up), dim=1))
    torch.testing.assert_close(out, gate / (1 + (-gate).exp()) * up)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (3, 64), (2, 1100)])
def test_triton_equals_torch(dtype: torch.dtype, rows: int, width: int) -> None:
    torch.manual_seed(width)
    x = (torch.randn(rows, 2 * width, device=DEVICE) * 4).to(dtype)
    x[0, 0] = -100.0  # e^100 is beyond float32: silu is 0 there
    want, got = swiglu_torch(x), swiglu_triton(x)
    exact = swiglu_torch(x.double())
    assert got[0, 0] == 0
    torch.testing.assert_close(got.double(), exact, rtol=3 * torch.finfo(dtype).eps, atol=1e-6)
    torch.testing.assert_close(got, want, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
