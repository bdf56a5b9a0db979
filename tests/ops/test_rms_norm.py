import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eagle3.ops.rms_norm import rms_norm_torch, rms_norm_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_equals_transformers(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 24).to(dtype), torch.randn(24).to(dtype)
    theirs = LlamaRMSNorm(24, eps=1e-3).to(dtype)
    theirs.weight.data.copy_(weight)
    ours, total = rms_norm_torch(x, weight, 1e-3)
    assert ours.dtype == dtype
    assert torch.equal(total, x)
    # bit for bit in half precision: cast back, then times the weight
    exact = 1e-6 if dtype == torch.float32 else 0.0
    torch.testing.assert_close(ours, theirs(x).detach(), rtol=exact, atol=exact)


def test_float64_keeps_its_precision() -> None:
    x, weight = torch.randn(5, 24, dtype=torch.float64), torch.randn(24, dtype=torch.float64)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    torch.testing.assert_close(rms_norm_torch(x, weight, 1e-3)[0], expected, rtol=1e-14, atol=1e-14)


def test_the_residual_is_added_first_and_handed_on() -> None:
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    before = residual.clone()
    normed, total = rms_norm_torch(x, weight, 1e-5, residual)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm_torch(x + residual, weight, 1e-5)[0])
    assert torch.equal(residual, before)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(("rows", "width"), [(1, 24), (5, 128), (3, 1000)])
@pytest.mark.parametrize("add", [False, True])
def test_triton_equals_torch(dtype: torch.dtype, rows: int, width: int, add: bool) -> None:
    torch.manual_seed(width)
    wide = torch.randn(rows, width + 3, device=DEVICE).to(dtype)
    x = wide[:, :width]  # a slice: rows lie further apart than they are long
    weight = torch.randn(width, device=DEVICE).to(dtype)
    residual = torch.randn(rows, width, device=DEVICE).to(dtype) * 4 if add else None
    before = wide.clone()
    want, total = rms_norm_torch(x, weight, 1e-5, residual)
    got, summed = rms_norm_triton(x, weight, 1e-5, residual)
    assert torch.equal(summed, total)
    assert torch.equal(wide, before)
    assert got.dtype == want.dtype
    exact = total.double() / (total.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(got.double(), exact, rtol=2.5 * torch.finfo(dtype).eps, atol=1e-6)
    torch.testing.assert_close(got, want, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
