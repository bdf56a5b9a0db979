import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eagle3.ops.rms_norm import rms_norm_torch


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
