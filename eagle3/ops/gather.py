"""Rows of a table by their indices: embeddings, rotary cosines and sines."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped


def gather_torch(table: Tensor, ids: Tensor) -> Tensor:
    """table [V, H], ids [T] i64 -> [T, H]."""
    return F.embedding(ids, table)


def gather_triton(table: Tensor, ids: Tensor) -> Tensor:
    """As `gather_torch`."""
    assert table.is_contiguous()
    assert ids.is_contiguous()
    rows, width = ids.shape[0], table.shape[1]
    out = torch.empty(rows, width, dtype=table.dtype, device=table.device)
    block = min(1024, triton.next_power_of_2(width))
    _gather_kernel[(rows, triton.cdiv(width, block))](table, ids, out, width, BLOCK=block, **overlapped(table))
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _gather_kernel(table, ids, out, width, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    follow(OVERLAP)
    source = tl.load(ids + row) * width + column
    tl.store(out + row * width + column, tl.load(table + source, mask=column < width), mask=column < width)


def gather(table: Tensor, ids: Tensor) -> Tensor:
    """As `gather_torch`, by the kernel on a GPU."""
    return (gather_triton if by_kernel(table) and ids.shape[0] > 0 else gather_torch)(table, ids)
