"""The gated activation of an MLP."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped


def swiglu_torch(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2I], gate first, -> silu(gate) · up [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu_triton(gate_up: Tensor) -> Tensor:
    """As `swiglu_torch`, in one launch; no float64."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.is_contiguous()
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(width))
    _swiglu_kernel[(rows, triton.cdiv(width, block))](gate_up, out, width, BLOCK=block, **overlapped(gate_up))
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _swiglu_kernel(gate_up, out, width, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    gated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)  # rounded before it meets up
    tl.store(out + row * width + column, (gated * up.to(tl.float32)).to(gate.dtype), mask=inside)


def swiglu(gate_up: Tensor) -> Tensor:
    """As `swiglu_torch`, by the kernel on a GPU."""
    return (swiglu_triton if by_kernel(gate_up) else swiglu_torch)(gate_up)
