"""The logarithm of what the exponentials of a row's logits sum to: logits less it are log-probabilities."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped
from eagle3.ops.select import CHUNK


def log_mass_torch(logits: Tensor, rows: Tensor) -> Tensor:
    """[R] float32, or float64 of float64, of the rows [R] i64 of logits [.., V]."""
    chosen = logits[rows]
    return (chosen if chosen.dtype is torch.float64 else chosen.float()).logsumexp(-1)


def log_mass_triton(logits: Tensor, rows: Tensor) -> Tensor:
    """As `log_mass_torch`; a program a row, whose order of sums is always the same."""
    assert logits.stride(1) == 1
    assert rows.is_contiguous()
    out = torch.empty(rows.shape[0], device=logits.device)
    _log_mass_kernel[(rows.shape[0],)](
        logits, rows, out, logits.stride(0), logits.shape[1], CHUNK=CHUNK, num_warps=8, **overlapped(out)
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _log_mass_kernel(logits, rows, out, stride, size, CHUNK: tl.constexpr, OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    follow(OVERLAP)
    at = tl.program_id(0).to(tl.int64)
    row = logits + tl.load(rows + at) * stride
    index = tl.arange(0, CHUNK)
    peak = tl.full([CHUNK], float("-inf"), tl.float32)
    for first in range(0, size, CHUNK):
        value = tl.load(row + first + index, mask=first + index < size, other=float("-inf")).to(tl.float32)
        peak = tl.maximum(peak, value)
    top = tl.max(peak, 0)
    mass = tl.zeros([CHUNK], tl.float32)
    for first in range(0, size, CHUNK):
        value = tl.load(row + first + index, mask=first + index < size, other=float("-inf")).to(tl.float32)
        mass += tl.exp(value - top)
    tl.store(out + at, top + tl.log(tl.sum(mass, 0)))


def log_mass(logits: Tensor, rows: Tensor) -> Tensor:
    """As `log_mass_torch`, by the kernel on a GPU."""
    return (log_mass_triton if by_kernel(logits) else log_mass_torch)(logits, rows)
