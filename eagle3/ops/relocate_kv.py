"""Move the K/V of accepted nodes to the entries that their tokens have in the sequence."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import follow, overlapped


def relocate_kv_torch(kv: Tensor, table: Tensor, base: Tensor, nodes: Tensor) -> None:
    """kv [L, pages, page, E], in place; table [B, M] page ids; base [B]; nodes [B, D], -1 past the end.

    The root is at base. The node accepted at depth i + 1 was written at base + nodes[i] and belongs at
    base + i + 1. All is read before any is written. Node ids rise along a path.
    """
    layers, _, page, width = kv.shape
    depth = torch.arange(1, nodes.shape[1] + 1, device=kv.device)
    past = nodes < 0  # past the end the root moves onto itself

    def rows(node: Tensor) -> Tensor:
        entry = base.long()[:, None] + torch.where(past, 0, node)
        return table.long().gather(1, entry // page) * page + entry % page

    flat = kv.view(layers, -1, width)
    flat[:, rows(depth)] = flat[:, rows(nodes)]


def relocate_kv_triton(kv: Tensor, table: Tensor, base: Tensor, nodes: Tensor) -> None:
    """As `relocate_kv_torch`."""
    (requests, depth), (layers, pages, page, width) = nodes.shape, kv.shape
    block = min(1024, triton.next_power_of_2(width))
    grid = (requests, triton.cdiv(width, block), layers)
    _relocate_kv_kernel[grid](
        kv,
        table,
        base,
        nodes,
        pages * page * width,
        width,
        table.shape[1],
        depth,
        PAGE=page,
        BLOCK=block,
        **overlapped(kv),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _relocate_kv_kernel(  # type: ignore[no-untyped-def]
    kv,
    table,
    base,
    nodes,
    layer_size,
    width,
    table_width,
    depth,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    request = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    layer = kv + tl.program_id(2).to(tl.int64) * layer_size + column
    root = tl.load(base + request).to(tl.int64)
    # Node ids rise along a path, so nodes[j] > i + 1 for all j > i: no write meets a later read.
    for i in range(depth):
        node = tl.load(nodes + request * depth + i).to(tl.int64)
        if node > i + 1:
            source, target = root + node, root + i + 1
            source_page = tl.load(table + request * table_width + source // PAGE).to(tl.int64)
            target_page = tl.load(table + request * table_width + target // PAGE).to(tl.int64)
            source_row = (source_page * PAGE + source % PAGE) * width
            target_row = (target_page * PAGE + target % PAGE) * width
            value = tl.load(layer + source_row, mask=column < width)
            tl.store(layer + target_row, value, mask=column < width)


def relocate_kv(kv: Tensor, table: Tensor, base: Tensor, nodes: Tensor) -> None:
    """As `relocate_kv_torch`, by the kernel on a GPU."""
    (relocate_kv_triton if kv.is_cuda else relocate_kv_torch)(kv, table, base, nodes)
