"""Attention of trees of guesses: all of the prefix, and a masked tail."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from eagle3.ops.dispatch import copies_blocks, follow, overlapped, shared_memory
from eagle3.ops.paged import attend, read_kv
from eagle3.ops.paged_blocks import LARGE, LOG2_E, Tile, absorb, choose_tile, dot_scores, load_block
from eagle3.ops.parts import LONG, choose_splits, combine_parts, processors
from eagle3.ops.steady import PART, attend_steady, close_part, join_parts

TAIL = tl.constexpr(4)  # blocks that the tail takes as long as, more than it has


def tree_attention_torch(
    q: Tensor,
    kv: Tensor,
    kv_lens: Tensor,
    table: Tensor,
    tail: int,
    depth: Tensor,
    mask: Tensor | None,
    scale: float,
    window: int | None,
    n_kv: int,
    *,
    steady: bool = False,
) -> Tensor:
    """q [G · Q, n_h, hd] over kv [pages, page, E] by kv_lens [G], table [G, M] -> as q.

    Entries before the last `tail` are seen by every row; column c of the tail by row i iff bit c of mask
    [G, Q, W] i32 is set or, without a mask, iff c <= tail - Q + i. Column c is at position kv_len - tail +
    depth[c], depth [G, tail]; row i is column tail - Q + i. A `window` hides all that is that many positions
    behind, or more. `steady`: without a mask a row's bits depend on what it sees alone.
    """
    (G, M), page = table.shape, kv.shape[1]
    Q = q.shape[0] // G
    k, v = read_kv(kv, kv_lens, table, n_kv, q.dtype)
    base = kv_lens.long()[:, None] - tail  # [G, 1] first entry of the tail
    entry = torch.arange(M * page, device=q.device)
    column = entry - base  # [G, S], negative in the prefix
    if mask is None:
        last = torch.arange(tail - Q, tail, device=q.device)  # [Q] the column of each row
        visible = column[:, None] <= last[:, None]  # [G, Q, S]
    else:
        word = (column // 32).clamp(0, mask.shape[2] - 1)[:, None].expand(G, Q, -1)
        bit = (mask.gather(2, word) >> (column % 32).to(torch.int32)[:, None]) & 1
        visible = (column < 0)[:, None] | (bit.bool() & (column < tail)[:, None])
    if window is not None:
        in_tail = base + depth.long().gather(1, column.clamp(0, tail - 1))
        k_pos = torch.where(column < 0, entry, in_tail)  # [G, S]
        q_pos = base + depth[:, tail - Q :]  # [G, Q]
        visible = visible & (q_pos[:, :, None] - k_pos[:, None] < window)
    rows = q.view(G, Q, *q.shape[1:])
    return (attend_steady if steady else attend)(rows, k, v, visible, kv_lens == 0, scale).flatten(0, 1)


def tree_attention_triton(
    q: Tensor,
    kv: Tensor,
    kv_lens: Tensor,
    table: Tensor,
    tail: int,
    depth: Tensor,
    mask: Tensor | None,
    scale: float,
    window: int | None,
    n_kv: int,
    *,
    splits: int | None = None,
    split_by_position: int | None = None,
    tile: Tile | None = None,
    by_page: bool | None = None,
) -> Tensor:
    """As `tree_attention_torch`, for a positive scale; sums are float32.

    The entries are split into `splits` equal parts (by default as many as fill the GPU), or cut at each multiple
    of `split_by_position` entries: then a row's bits depend on what it sees alone, not on Q, G or the tail, and are
    those that `prompt_attention_triton` gives it. `by_page`: blocks that lie in one page are fetched by the GPU's
    copy engine (by default where there is one).
    """
    (G, M), (_, page, width), (rows, n_h, hd) = table.shape, kv.shape, q.shape
    Q, group = rows // G, n_h // n_kv
    steady = split_by_position is not None
    if by_page is None:
        by_page = q.is_cuda and copies_blocks(q.device) and q.dtype.itemsize == 2
    together = page if by_page and hd in (64, 128) and shared_memory(q.device) >= LARGE else 1
    full = G * n_kv >= processors(q.device)
    tile = tile or choose_tile(Q * group, hd, q.dtype, steady, together, long=M * page >= LONG, full=full)
    tiles = triton.cdiv(Q * group, tile.rows)
    if split_by_position is not None:
        splits = triton.cdiv(M * page, split_by_position)
    elif splits is None:
        splits = choose_splits(G * n_kv * tiles, M * page, processors(q.device), tile)
    assert scale > 0
    assert page & (page - 1) == 0
    assert (split_by_position or 0) % tile.entries == 0
    assert (q.stride(2), width) == (1, 2 * n_kv * hd)
    assert tail == 1 or depth.stride(1) == 1
    assert all(x.is_contiguous() for x in (kv, kv_lens, table, kv_lens if mask is None else mask))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    parts, logs = out, out  # not used by one part
    split = splits > 1 or split_by_position is not None
    if split:
        parts = torch.empty(rows, n_h, splits, hd, dtype=torch.float32, device=q.device)
        logs = torch.empty(rows, n_h, splits, dtype=torch.float32, device=q.device)
    by_page = by_page and page % tile.entries == 0 and hd in (64, 128, 256) and q.dtype == kv.dtype
    blocks = TensorDescriptor.from_tensor(kv.view(-1, width), [tile.entries, hd]) if by_page else kv
    _tree_attention_kernel[(tiles * splits, n_kv, G)](
        q, kv, blocks, kv_lens, table, depth, kv_lens if mask is None else mask, out, parts, logs,
        scale * LOG2_E, window or 0, q.stride(0), q.stride(1), width, depth.stride(0), tail, Q, M,
        0 if mask is None else mask.shape[2], splits, split_by_position or 0,
        N_KV=n_kv, GROUP=group, HEAD=hd, BLOCK_D=max(16, triton.next_power_of_2(hd)), PAGE=page,
        BLOCK_M=tile.rows, BLOCK_N=tile.entries, SPLIT=split, HAS_MASK=mask is not None,
        HAS_WINDOW=window is not None, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        FEW=tile.rows <= 16 and splits > 1, BY_PAGE=by_page, num_warps=tile.warps, num_stages=tile.stages,
        **overlapped(q),
    )  # fmt: skip
    if split_by_position is not None:
        join_parts(parts, logs, out)
    elif split:
        combine_parts(parts, logs, out)
    return out


@triton.jit
def _word(words, at, row, W, tail):  # type: ignore[no-untyped-def]
    """The words at `at` of each row's mask; 0 of rows and words that are none."""
    return tl.load(words + at, mask=row < tl.where((at >= 0) & (at < W), tail, 0), other=0)


@triton.jit  # type: ignore[untyped-decorator]
def _sees(  # type: ignore[no-untyped-def]
    start,
    kv_len,
    base,
    tail,
    row,
    words,
    W,
    depth,
    q_pos,
    window,
    BLOCK_N: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Which entries from `start` the rows see, [BLOCK_M, BLOCK_N]; `row` [BLOCK_M] counts columns of the tail."""
    lane = tl.arange(0, BLOCK_N)[None, :]
    entry = start + tl.arange(0, BLOCK_N)
    column = entry - base  # negative in the prefix
    in_tail = (column >= 0) & (entry < kv_len)
    column = tl.maximum(column, 0)
    if HAS_MASK:
        # the words that the block's columns begin in, shifted so that bit j % 32 of word j // 32 is the block's j-th
        ahead = tl.maximum(start - base, -BLOCK_N) + 32 * BLOCK_N  # not negative, so that / and % round down
        first, shift = ahead // 32 - BLOCK_N, (ahead % 32).to(tl.int64)
        bits = tl.zeros((row.shape[0], BLOCK_N), tl.int32)
        low = _word(words, first, row, W, tail)
        for i in tl.static_range((BLOCK_N + 31) // 32):
            high = _word(words, first + i + 1, row, W, tail)
            both = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
            own = (both >> shift).to(tl.int32)
            bits = own[:, None] if i == 0 else tl.where(lane >= 32 * i, own[:, None], bits)
            low = high
        sees = ((bits >> (lane % 32)) & 1) != 0
    else:
        sees = column[None, :] <= row[:, None]
    sees = (sees & in_tail[None, :]) | (entry < base)[None, :]
    if HAS_WINDOW:
        place = tl.load(depth + column, mask=in_tail, other=0) + base
        sees = sees & (q_pos[:, None] - tl.where(in_tail, place, entry)[None, :] < window)
    return sees


@triton.jit(do_not_specialize=["window", "depth_row", "tail", "Q", "M", "W", "splits", "part"])  # type: ignore[untyped-decorator]
def _tree_attention_kernel(  # type: ignore[no-untyped-def]
    q, kv, blocks, kv_lens, table, depth, mask, out, parts, logs,
    scale, window, q_row, q_head, width, depth_row, tail, Q, M, W, splits, part,
    N_KV: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_WINDOW: tl.constexpr, PRECISION: tl.constexpr, FEW: tl.constexpr, BY_PAGE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    tiles = tl.cdiv(Q * GROUP, BLOCK_M)
    tile, split = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    head, request = tl.program_id(1), tl.program_id(2)
    lane = tile * BLOCK_M + tl.arange(0, BLOCK_M)  # a row for each query of the group's heads, heads fastest
    dim = tl.arange(0, BLOCK_D)
    row, q_at = tail - Q + lane // GROUP, (request * Q + lane // GROUP).to(tl.int64)
    q_head_at = head * GROUP + lane % GROUP
    real = (lane < Q * GROUP)[:, None] & (dim < HEAD)[None, :]
    queries = tl.load(q + (q_at * q_row + q_head_at * q_head)[:, None] + dim[None, :], mask=real, other=0.0)

    kv_len = tl.load(kv_lens + request).to(tl.int32)
    base = kv_len - tail
    table += request.to(tl.int64) * M
    words = mask + q_at * W
    depth += request.to(tl.int64) * depth_row
    first, q_pos = 0, row
    if HAS_WINDOW:
        q_pos = base + tl.load(depth + row, mask=row < tail, other=0)
        first = tl.maximum(base - window + 1, 0) // BLOCK_N * BLOCK_N
    if part > 0:
        low, high = tl.maximum(split * part, first), tl.minimum((split + 1) * part, kv_len)
    else:
        count = tl.cdiv(kv_len - first, BLOCK_N)
        count += tl.where(count >= 16 * splits, TAIL, 0)  # the tail's blocks take longer than others
        each = tl.cdiv(count, splits) * BLOCK_N
        low, high = first + split * each, tl.minimum(first + (split + 1) * each, kv_len)
    open_low = low  # from here to open_high all rows see all entries
    if HAS_WINDOW:
        open_low = tl.maximum(low, tl.cdiv(tl.maximum(kv_len - window, 0), BLOCK_N) * BLOCK_N)
    open_high = tl.maximum(tl.minimum(high, base) // BLOCK_N * BLOCK_N, open_low)
    if FEW:  # few blocks and cheap masks: one loop has less latency than two
        open_high = open_low

    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    key_at = head * HEAD
    if HAS_WINDOW:
        for start in range(low, tl.minimum(open_low, high), BLOCK_N):
            k, v = load_block(
                kv, table, start, kv_len, key_at, width, queries, N_KV, HEAD, BLOCK_D, PAGE, BLOCK_N, True
            )
            sees = _sees(start, kv_len, base, tail, row, words, W, depth, q_pos, window, BLOCK_N, HAS_MASK, True)
            scores = tl.where(sees, dot_scores(queries, k, PRECISION), float("-inf"))
            acc, top, total = absorb(scores, v, acc, top, total, scale, PRECISION, True)
    page = 0
    if BY_PAGE:
        page = tl.load(table + open_low // PAGE, mask=open_low < open_high, other=0)
    for start in range(open_low, open_high, BLOCK_N):
        if BY_PAGE:
            at = page * PAGE + start % PAGE
            # of the next block: read here, it keeps no copy waiting
            page = tl.load(table + (start + BLOCK_N) // PAGE, mask=start + BLOCK_N < open_high, other=0)
            k, v = blocks.load([at, key_at]), blocks.load([at, key_at + N_KV * HEAD])
        else:
            k, v = load_block(
                kv, table, start, kv_len, key_at, width, queries, N_KV, HEAD, BLOCK_D, PAGE, BLOCK_N, False
            )
        scores = dot_scores(queries, k, PRECISION)
        acc, top, total = absorb(scores, v, acc, top, total, scale, PRECISION, False)
    for start in range(open_high, high, BLOCK_N):
        k, v = load_block(kv, table, start, kv_len, key_at, width, queries, N_KV, HEAD, BLOCK_D, PAGE, BLOCK_N, True)
        sees = _sees(start, kv_len, base, tail, row, words, W, depth, q_pos, window, BLOCK_N, HAS_MASK, HAS_WINDOW)
        scores = tl.where(sees, dot_scores(queries, k, PRECISION), float("-inf"))
        acc, top, total = absorb(scores, v, acc, top, total, scale, PRECISION, True)

    acc, log = close_part(acc, top, total)
    out_at = q_at * (N_KV * GROUP) + q_head_at
    if SPLIT:
        out_at = out_at * splits + split
        tl.store(logs + out_at, log, mask=lane < Q * GROUP)
        written = (lane < tl.where(low < high, Q * GROUP, 0))[:, None] & (dim < HEAD)[None, :]
        tl.store(parts + out_at[:, None] * HEAD + dim[None, :], acc, mask=written)
    else:
        tl.store(out + out_at[:, None] * HEAD + dim[None, :], acc.to(out.dtype.element_ty), mask=real)


def tree_attention(
    q: Tensor,
    kv: Tensor,
    kv_lens: Tensor,
    table: Tensor,
    tail: int,
    depth: Tensor,
    mask: Tensor | None,
    scale: float,
    window: int | None,
    n_kv: int,
    *,
    steady: bool = False,
) -> Tensor:
    """As `tree_attention_torch`, by the kernels on a GPU; in float64 by torch everywhere."""
    given = (q, kv, kv_lens, table, tail, depth, mask, scale, window, n_kv)
    if q.is_cuda and q.dtype != torch.float64:
        return tree_attention_triton(*given, split_by_position=PART if steady else None)
    return tree_attention_torch(*given, steady=steady)
