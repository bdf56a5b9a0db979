"""Where the rows of a draft loop stand: all its steps at once, as they depend on the length alone."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped
from eagle3.ops.slot_rows import entries


class LoopRows(NamedTuple):
    """Steps 1 … D - 1 of K rows a request; the one of step s is row s - 1.

    Entry length + e is the loop's e-th, of a node of depth e // K + 1 whose position is length + e // K.
    """

    positions: Tensor  # [D - 1, B · K] i64
    write_at: Tensor  # [D - 1, B · K] i64, flat entries
    kv_lens: Tensor  # [D - 1, B] i32, length + step · K
    depth: Tensor  # [1, K(D - 1)] i32, e // K: a step's tail are its first step · K columns


def loop_rows_torch(length: Tensor, table: Tensor, page: int, top_k: int, depth: int) -> LoopRows:
    """For lengths [B] i64 and a block table [B, M] i32."""
    steps, B = depth - 1, length.shape[0]
    entry = torch.arange(steps * top_k, device=length.device)
    base = length[:, None]

    def by_step(rows: Tensor) -> Tensor:
        return rows.view(B, steps, top_k).transpose(0, 1).reshape(steps, B * top_k)

    step = torch.arange(1, depth, device=length.device)[:, None]
    return LoopRows(
        positions=by_step(base + entry // top_k),
        write_at=by_step(entries(table, base + entry, page)),
        kv_lens=(length + step * top_k).int(),
        depth=(entry // top_k).int()[None],
    )


def loop_rows_triton(length: Tensor, table: Tensor, page: int, top_k: int, depth: int) -> LoopRows:
    """As `loop_rows_torch`, in one launch."""
    steps, B, device = depth - 1, length.shape[0], length.device
    assert length.is_contiguous()
    assert table.stride(1) == 1
    rows = torch.empty(2, steps, B * top_k, dtype=torch.int64, device=device)
    kv_lens = torch.empty(steps, B, dtype=torch.int32, device=device)
    tail = torch.empty(1, steps * top_k, dtype=torch.int32, device=device)
    block = triton.next_power_of_2(max(1, steps * top_k))
    _loop_rows_kernel[(B,)](
        length,
        table,
        *rows,
        kv_lens,
        tail,
        table.stride(0),
        page,
        top_k,
        steps,
        BLOCK=block,
        num_warps=1,
        **overlapped(length),
    )
    return LoopRows(rows[0], rows[1], kv_lens, tail)


@triton.jit  # type: ignore[untyped-decorator]
def _loop_rows_kernel(  # type: ignore[no-untyped-def]
    length,
    table,
    positions,
    write_at,
    kv_lens,
    depth,
    table_width,
    page,
    K,
    steps,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    request, requests = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    entry = tl.arange(0, BLOCK)
    real = entry < steps * K
    level = entry // K
    base = tl.load(length + request)
    at = base + entry
    held = tl.load(table + request * table_width + at // page, mask=real, other=0).to(tl.int64)
    row = (level * requests + request) * K + entry % K
    tl.store(write_at + row, held * page + at % page, mask=real)
    tl.store(positions + row, base + level, mask=real)
    first = real & (entry % K == 0)
    tl.store(kv_lens + level * requests + request, (base + (level + 1) * K).to(tl.int32), mask=first)
    if request == 0:
        tl.store(depth + entry, level, mask=real)


def loop_rows(length: Tensor, table: Tensor, page: int, top_k: int, depth: int) -> LoopRows:
    """As `loop_rows_torch`, by the kernel on a GPU."""
    return (loop_rows_triton if by_kernel(length) else loop_rows_torch)(length, table, page, top_k, depth)
