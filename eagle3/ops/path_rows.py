"""What follows from an accepted path: the request's new root and length, and the P rows that the head reads of it."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped
from eagle3.ops.slot_rows import entries


class PathRows(NamedTuple):
    """G requests of P rows: the root, the accepted nodes, and past the end rows that stand for the root again."""

    counts: Tensor  # [G] i64, accepted tokens; 0 in padding
    real: Tensor  # [G] bool, no padding
    root: Tensor  # [G] i64, the last accepted token
    length: Tensor  # [G] i64, committed entries now
    last: Tensor  # [G] i64, the last accepted row
    kv_lens: Tensor  # [G] i32, with all P rows
    positions: Tensor  # [G · P] i64
    write_at: Tensor  # [G · P] i64, flat entries
    depth: Tensor  # [G, P] i32, 0 … P - 1
    captured: Tensor  # [G · P, E], the features of the rows' nodes


def path_rows_torch(
    tokens: Tensor,
    counts: Tensor,
    nodes: Tensor,
    length: Tensor,
    slots: Tensor,
    dummy: int,
    table: Tensor,
    page: int,
    captured: Tensor,
) -> PathRows:
    """tokens [G, P] i64, counts [G] i64, nodes [G, D] i64 (-1 past the end) as accepted, past length [G] i64.

    slots [G] i64, `dummy` in padding; table [G, M] i32. captured [G, N, E] has every node's features.
    """
    (G, P), device = tokens.shape, tokens.device
    step, g = torch.arange(P, device=device), torch.arange(G, device=device)
    real = slots != dummy
    counts = counts * real
    end = (counts - 1).clamp(min=0)
    at = length[:, None] + step
    node = torch.cat([torch.zeros_like(tokens[:, :1]), nodes.clamp(min=0)], dim=1)  # [G, P]
    return PathRows(
        counts=counts,
        real=real,
        root=tokens.gather(1, end[:, None])[:, 0],
        length=length + counts,
        last=g * P + end,
        kv_lens=(length + P).int(),
        positions=at.flatten(),
        write_at=entries(table, at, page).flatten(),
        depth=step.int().repeat(G, 1),
        captured=captured[g[:, None], node].flatten(0, 1),
    )


def path_rows_triton(
    tokens: Tensor,
    counts: Tensor,
    nodes: Tensor,
    length: Tensor,
    slots: Tensor,
    dummy: int,
    table: Tensor,
    page: int,
    captured: Tensor,
) -> PathRows:
    """As `path_rows_torch`, in one launch."""
    (G, P), (_, N, width), device = tokens.shape, captured.shape, tokens.device
    assert all(t.is_contiguous() for t in (tokens, counts, nodes, length, slots, captured))
    assert table.stride(1) == 1
    one, row = (
        torch.empty(4, G, dtype=torch.int64, device=device),
        torch.empty(2, G * P, dtype=torch.int64, device=device),
    )
    out = PathRows(
        counts=one[0],
        real=torch.empty(G, dtype=torch.bool, device=device),
        root=one[1],
        length=one[2],
        last=one[3],
        kv_lens=torch.empty(G, dtype=torch.int32, device=device),
        positions=row[0],
        write_at=row[1],
        depth=torch.empty(G, P, dtype=torch.int32, device=device),
        captured=captured.new_empty(G * P, width),
    )
    block = min(1024, triton.next_power_of_2(max(width, 1)))
    _path_rows_kernel[(G * P, max(1, triton.cdiv(width, block)))](
        tokens,
        counts,
        nodes,
        length,
        slots,
        table,
        captured,
        *out._replace(real=out.real.view(torch.uint8)),
        dummy,
        table.stride(0),
        page,
        P,
        N,
        width,
        BLOCK=block,
        num_warps=4,
        **overlapped(tokens),
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _path_rows_kernel(  # type: ignore[no-untyped-def]
    tokens,
    counts,
    nodes,
    length,
    slots,
    table,
    captured,
    out_counts,
    out_real,
    out_root,
    out_length,
    out_last,
    out_kv_lens,
    out_positions,
    out_write_at,
    out_depth,
    out_captured,
    dummy,
    table_width,
    page,
    P,
    N,
    width,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    request, step = row // P, row % P
    node = tl.load(nodes + request * (P - 1) + step - 1, mask=step > 0, other=0)
    node = tl.maximum(node, 0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    features = tl.load(captured + (request * N + node) * width + column, mask=column < width)
    tl.store(out_captured + row * width + column, features, mask=column < width)
    if tl.program_id(1) == 0:
        base = tl.load(length + request)
        at = base + step
        held = tl.load(table + request * table_width + at // page).to(tl.int64)
        tl.store(out_positions + row, at)
        tl.store(out_write_at + row, held * page + at % page)
        tl.store(out_depth + row, step.to(tl.int32))
        if step == 0:
            real = tl.load(slots + request) != dummy
            count = tl.where(real, tl.load(counts + request), 0)
            end = tl.maximum(count - 1, 0)
            tl.store(out_counts + request, count)
            tl.store(out_real + request, real.to(tl.uint8))
            tl.store(out_root + request, tl.load(tokens + request * P + end))
            tl.store(out_length + request, base + count)
            tl.store(out_last + request, request * P + end)
            tl.store(out_kv_lens + request, (base + P).to(tl.int32))


def path_rows(
    tokens: Tensor,
    counts: Tensor,
    nodes: Tensor,
    length: Tensor,
    slots: Tensor,
    dummy: int,
    table: Tensor,
    page: int,
    captured: Tensor,
) -> PathRows:
    """As `path_rows_torch`, by the kernel on a GPU."""
    rows = path_rows_triton if by_kernel(tokens) else path_rows_torch
    return rows(tokens, counts, nodes, length, slots, dummy, table, page, captured)
