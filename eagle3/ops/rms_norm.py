"""Root-mean-square norm, with the sum into the residual stream that comes before it."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped


def rms_norm_torch(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x [T, H], weight [H] -> (norm of the sum, the sum itself x + residual), both [T, H] as x.

    The statistics are float32 at least; the result is cast back before it meets the weight.
    """
    total = x if residual is None else x + residual
    dtype = torch.promote_types(x.dtype, torch.float32)
    if dtype == x.dtype == weight.dtype:
        return F.rms_norm(total, weight.shape, weight, eps), total
    return F.rms_norm(total.to(dtype), weight.shape, None, eps).to(x.dtype) * weight, total


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `rms_norm_torch`, in one launch; no float64."""
    rows, width = x.shape
    assert x.stride(1) == 1
    out = torch.empty(rows, width, dtype=torch.promote_types(x.dtype, weight.dtype), device=x.device)
    total = x
    if residual is not None:
        assert residual.dtype == x.dtype
        assert residual.stride(1) == 1
        total = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[(rows,)](
        x,
        x if residual is None else residual,
        weight,
        out,
        total,
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        width,
        eps,
        ADD=residual is not None,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
        **overlapped(x),
    )
    return out, total


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm_kernel(  # type: ignore[no-untyped-def]
    x,
    residual,
    weight,
    out,
    total,
    x_stride,
    residual_stride,
    width,
    eps,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    scale = tl.load(weight + column, mask=inside, other=0.0)
    follow(OVERLAP)
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    if ADD:
        more = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)  # rounded before it is squared
        tl.store(total + row * width + column, value, mask=inside)
    wide = value.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    normed = (wide * factor).to(value.dtype).to(tl.float32) * scale.to(tl.float32)
    tl.store(out + row * width + column, normed.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `rms_norm_torch`, by the kernel on a GPU."""
    return (rms_norm_triton if by_kernel(x) else rms_norm_torch)(x, weight, eps, residual)
