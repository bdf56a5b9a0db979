"""When a kernel serves, when the torch reference does, and how one kernel starts while another ends."""

# ruff: noqa: ANN201 (a kernel's arguments have no Python types)

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def by_kernel(x: Tensor) -> bool:
    """Whether x is on a GPU, not float64 (kernels compute in float32), and no gradient is wanted of it."""
    return x.is_cuda and x.dtype is not torch.float64 and not torch.is_grad_enabled()


def overlapped(x: Tensor) -> dict[str, Any]:
    """Launch arguments of a kernel that calls `follow`: since Hopper it is made resident while the one before ends.

    (Programmatic dependent launch; in a CUDA graph too.)
    """
    return {"OVERLAP": True, "launch_pdl": True} if x.is_cuda and copies_blocks(x.device) else {"OVERLAP": False}


@cache
def copies_blocks(device: torch.device) -> bool:
    """Whether a GPU is Hopper or later: it overlaps launches, and has an engine that copies blocks of a tensor."""
    return torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of a multiprocessor's memory that a program may use; a CPU passes for a Hopper."""
    if device.type != "cuda":
        return 227 * 1024
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])


@triton.jit  # type: ignore[untyped-decorator]
def follow(OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Let the next kernel come, and wait for all before this one: what they wrote may be read, and read over, now.

    Every kernel launched with `overlapped` calls it before it touches memory that a step changes.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
