"""Read the slots of a batch and place their trees in the sequences; write the slots' next trees."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped


class SlotRows(NamedTuple):
    """What slots hold, R rows of it: all slots, or those of a batch."""

    tokens: Tensor  # [R, N] i64
    depth: Tensor  # [R, N] i32
    mask: Tensor  # [R, N, W] i32
    first_child: Tensor  # [R, N] i32
    next_sibling: Tensor  # [R, N] i32
    has_tree: Tensor  # [R] bool
    length: Tensor  # [R] i64
    temperature: Tensor  # [R] f32
    top_k: Tensor  # [R] i32
    top_p: Tensor  # [R] f32
    min_p: Tensor  # [R] f32
    seed: Tensor  # [R] i64


class Placed(NamedTuple):
    """Where the N nodes of B trees stand: node j is written at entry length + j, its position is length + depth."""

    positions: Tensor  # [B, N] i64
    write_at: Tensor  # [B, N] i64, flat entries
    kv_lens: Tensor  # [B] i32, length + N


def entries(table: Tensor, at: Tensor, page: int) -> Tensor:
    """Flat entries [B, n] i64 of the places in the sequence `at` [B, n] i64 under the block table [B, M]."""
    return table.long().gather(1, at // page) * page + at % page


def read_slots_torch(slots: SlotRows, ids: Tensor, table: Tensor, page: int) -> tuple[SlotRows, Placed]:
    """The rows `ids` [B] i64, copied, and where their nodes stand under the block table [B, M] i32."""
    rows = SlotRows(*(t[ids] for t in slots))
    base, nodes = rows.length[:, None], rows.tokens.shape[1]
    at = base + torch.arange(nodes, device=ids.device)
    return rows, Placed(base + rows.depth, entries(table, at, page), (rows.length + nodes).int())


def read_slots_triton(slots: SlotRows, ids: Tensor, table: Tensor, page: int) -> tuple[SlotRows, Placed]:
    """As `read_slots_torch`, in one launch."""
    requests, (nodes, words) = ids.shape[0], slots.mask.shape[1:]
    assert all(t.is_contiguous() for t in slots)
    assert table.stride(1) == 1
    rows = SlotRows(*(t.new_empty(requests, *t.shape[1:]) for t in slots))
    placed = Placed(torch.empty_like(rows.tokens), torch.empty_like(rows.tokens), torch.empty_like(rows.top_k))
    block = triton.next_power_of_2(nodes)
    _read_slots_kernel[(requests,)](
        *_bytes(slots),
        *_bytes(rows),
        *placed,
        ids,
        table,
        table.stride(0),
        page,
        nodes,
        words,
        BLOCK=block,
        num_warps=1 if block <= 64 else 4,
        **overlapped(ids),
    )
    return rows, placed


def _bytes(rows: SlotRows) -> SlotRows:
    """Booleans as bytes, which a kernel moves as they are."""
    return rows._replace(has_tree=rows.has_tree.view(torch.uint8))


@triton.jit
def _move(source, out, slot, request, column, inside, width):  # type: ignore[no-untyped-def]
    """Copy `width` columns of row `slot` to row `request`; what was copied."""
    value = tl.load(source + slot * width + column, mask=inside, other=0)
    tl.store(out + request * width + column, value, mask=inside)
    return value


@triton.jit  # type: ignore[untyped-decorator]
def _read_slots_kernel(  # type: ignore[no-untyped-def]
    tokens,
    depth,
    mask,
    first_child,
    next_sibling,
    has_tree,
    length,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    out_tokens,
    out_depth,
    out_mask,
    out_first_child,
    out_next_sibling,
    out_has_tree,
    out_length,
    out_temperature,
    out_top_k,
    out_top_p,
    out_min_p,
    out_seed,
    positions,
    write_at,
    kv_lens,
    ids,
    table,
    table_width,
    page,
    nodes,
    words,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    request = tl.program_id(0).to(tl.int64)
    slot = tl.load(ids + request)
    node = tl.arange(0, BLOCK)
    real = node < nodes
    _move(tokens, out_tokens, slot, request, node, real, nodes)
    level = _move(depth, out_depth, slot, request, node, real, nodes)
    _move(first_child, out_first_child, slot, request, node, real, nodes)
    _move(next_sibling, out_next_sibling, slot, request, node, real, nodes)
    for word in range(words):
        _move(mask, out_mask, slot, request, node * words + word, real, nodes * words)
    base = tl.load(length + slot)
    tl.store(out_length + request, base)
    tl.store(out_has_tree + request, tl.load(has_tree + slot))
    tl.store(out_temperature + request, tl.load(temperature + slot))
    tl.store(out_top_k + request, tl.load(top_k + slot))
    tl.store(out_top_p + request, tl.load(top_p + slot))
    tl.store(out_min_p + request, tl.load(min_p + slot))
    tl.store(out_seed + request, tl.load(seed + slot))
    at = base + node
    held = tl.load(table + request * table_width + at // page, mask=real, other=0).to(tl.int64)
    tl.store(write_at + request * nodes + node, held * page + at % page, mask=real)
    tl.store(positions + request * nodes + node, base + level, mask=real)
    tl.store(kv_lens + request, (base + nodes).to(tl.int32))


def read_slots(slots: SlotRows, ids: Tensor, table: Tensor, page: int) -> tuple[SlotRows, Placed]:
    """As `read_slots_torch`, by the kernel on a GPU."""
    return (read_slots_triton if by_kernel(ids) else read_slots_torch)(slots, ids, table, page)


NewTree = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # the first five fields of `SlotRows`, a row a request


def write_slots_torch(
    slots: SlotRows, ids: Tensor, keep: Tensor, tree: NewTree, length: Tensor, has_tree: bool, links: bool
) -> None:
    """Set the rows `ids` [B] where `keep` [B] bool, in place; without `links` the tree's tokens alone.

    A row that is kept is named once; others may be named more often.
    """

    def put(row: Tensor, new: Tensor) -> None:
        row[ids] = torch.where(keep.view(-1, *[1] * (new.dim() - 1)), new, row[ids])

    for row, new in zip(slots[: 5 if links else 1], tree, strict=False):
        put(row, new)
    put(slots.length, length)
    put(slots.has_tree, torch.full_like(keep, has_tree))


def write_slots_triton(
    slots: SlotRows, ids: Tensor, keep: Tensor, tree: NewTree, length: Tensor, has_tree: bool, links: bool
) -> None:
    """As `write_slots_torch`, in one launch."""
    nodes, words = slots.mask.shape[1:]
    own = _bytes(slots)
    assert all(t.is_contiguous() for t in (*slots, keep, length, *(tree if links else tree[:1])))
    block = triton.next_power_of_2(nodes)
    _write_slots_kernel[(ids.shape[0],)](
        *own[:7],
        *tree,
        ids,
        keep.view(torch.uint8),
        length,
        nodes,
        words,
        HAS_TREE=int(has_tree),
        LINKS=links,
        BLOCK=block,
        num_warps=1 if block <= 64 else 4,
        **overlapped(ids),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _write_slots_kernel(  # type: ignore[no-untyped-def]
    tokens,
    depth,
    mask,
    first_child,
    next_sibling,
    has_tree,
    length,
    new_tokens,
    new_depth,
    new_mask,
    new_first_child,
    new_next_sibling,
    ids,
    keep,
    new_length,
    nodes,
    words,
    HAS_TREE: tl.constexpr,
    LINKS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    request = tl.program_id(0).to(tl.int64)
    if tl.load(keep + request) != 0:
        slot = tl.load(ids + request)
        node = tl.arange(0, BLOCK)
        real = node < nodes
        _move(new_tokens, tokens, request, slot, node, real, nodes)
        if LINKS:
            _move(new_depth, depth, request, slot, node, real, nodes)
            _move(new_first_child, first_child, request, slot, node, real, nodes)
            _move(new_next_sibling, next_sibling, request, slot, node, real, nodes)
            for word in range(words):
                _move(new_mask, mask, request, slot, node * words + word, real, nodes * words)
        tl.store(length + slot, tl.load(new_length + request))
        tl.store(has_tree + slot, tl.full([], HAS_TREE, tl.uint8))


def write_slots(
    slots: SlotRows, ids: Tensor, keep: Tensor, tree: NewTree, length: Tensor, has_tree: bool, links: bool
) -> None:
    """As `write_slots_torch`, by the kernel on a GPU."""
    write = write_slots_triton if by_kernel(ids) else write_slots_torch
    write(slots, ids, keep, tree, length, has_tree, links)
