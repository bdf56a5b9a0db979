"""Attention of prompt chunks, ragged, over all that a request has in the pool."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import follow, overlapped, shared_memory
from eagle3.ops.paged import attend, read_kv
from eagle3.ops.paged_blocks import LARGE, LOG2_E, Tile, absorb, choose_tile, dot_scores, load_block
from eagle3.ops.steady import PART, attend_steady, close_part, join


def prompt_attention_torch(
    q: Tensor,
    kv: Tensor,
    cu_q: Tensor,
    kv_lens: Tensor,
    table: Tensor,
    max_q: int,
    scale: float,
    window: int | None,
    n_kv: int,
    *,
    steady: bool = False,
) -> Tensor:
    """q [T, n_h, hd] over kv [pages, page, E] by cu_q [C + 1], kv_lens [C], table [C, M] -> [T, n_h, hd].

    Row i of a request of q_len rows stands at position kv_len - q_len + i and sees the positions up to its
    own, the last `window` of them if there is a window. No chunk is longer than `max_q`.
    `steady`: a row's bits depend on what it sees alone.
    """
    k, v = read_kv(kv, kv_lens, table, n_kv, q.dtype)
    local = torch.arange(max_q, device=q.device)
    starts, ends = cu_q[:-1].long(), cu_q[1:].long()
    rows = (starts[:, None] + local).clamp_max(q.shape[0] - 1)  # [C, max_q], shorter chunks padded
    at = (kv_lens - (ends - starts))[:, None] + local  # [C, max_q] positions
    past = at[:, :, None] - torch.arange(k.shape[2], device=q.device)  # [C, max_q, S] how far behind a row
    visible = past >= 0 if window is None else (past >= 0) & (past < window)
    out = (attend_steady if steady else attend)(q[rows], k, v, visible, kv_lens == 0, scale)  # [C, max_q, n_h, hd]
    row = torch.arange(q.shape[0], device=q.device)
    owner = torch.searchsorted(ends, row, right=True).clamp_max(ends.shape[0] - 1)
    return out[owner, (row - starts[owner]).clamp_max(max_q - 1)]


def prompt_attention_triton(
    q: Tensor,
    kv: Tensor,
    cu_q: Tensor,
    kv_lens: Tensor,
    table: Tensor,
    max_q: int,
    scale: float,
    window: int | None,
    n_kv: int,
    *,
    split_by_position: int | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """As `prompt_attention_torch`, for a positive scale; sums are float32; zeros past the last request.

    Cut at each multiple of `split_by_position` entries, a row's bits depend on what it sees alone, not on max_q,
    C or where its chunk begins, and are those that `tree_attention_triton` gives it.
    """
    (C, M), (_, page, width), (_, n_h, hd) = table.shape, kv.shape, q.shape
    group = n_h // n_kv
    steady = split_by_position is not None
    roomy = shared_memory(q.device) >= LARGE
    if tile is None and not steady and roomy and max_q * group > 64 and hd <= 128 and q.dtype.itemsize == 2:
        tile = Tile(128, 128, 8, 3)  # many rows share what is read: arithmetic is what counts
    tile = tile or choose_tile(max_q * group, hd, q.dtype, steady)
    assert scale > 0
    assert page & (page - 1) == 0
    assert (split_by_position or 0) % tile.entries == 0
    assert (q.stride(2), width) == (1, 2 * n_kv * hd)
    assert all(x.is_contiguous() for x in (kv, cu_q, kv_lens, table))
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    _prompt_attention_kernel[(triton.cdiv(max_q * group, tile.rows), n_kv, C)](
        q, kv, cu_q, kv_lens, table, out, scale * LOG2_E, window or 0, q.stride(0), q.stride(1), width, M,
        N_KV=n_kv, GROUP=group, HEAD=hd, BLOCK_D=max(16, triton.next_power_of_2(hd)), PAGE=page,
        BLOCK_M=tile.rows, BLOCK_N=tile.entries, HAS_WINDOW=window is not None, CUT=split_by_position or 0,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.warps, num_stages=tile.stages,
        **overlapped(q),
    )  # fmt: skip
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _span(  # type: ignore[no-untyped-def]
    kv, table, queries, q_pos, low, high, open_low, open_high, kv_len, key_at, width, window, scale,
    N_KV: tl.constexpr, HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, HAS_WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running softmax over the entries low … high; from open_low to open_high all rows see all of them."""
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    open_low = tl.maximum(open_low, low)
    open_high = tl.maximum(tl.minimum(open_high, high), open_low)
    if HAS_WINDOW:
        for start in range(low, tl.minimum(open_low, high), BLOCK_N):
            k, v = load_block(
                kv, table, start, kv_len, key_at, width, queries, N_KV, HEAD, BLOCK_D, PAGE, BLOCK_N, True
            )
            past = q_pos[:, None] - (start + tl.arange(0, BLOCK_N))[None, :]
            scores = dot_scores(queries, k, PRECISION)
            scores = tl.where((past >= 0) & (past < window), scores, float("-inf"))
            acc, top, total = absorb(scores, v, acc, top, total, scale, PRECISION, True)
    for start in range(open_low, open_high, BLOCK_N):
        k, v = load_block(kv, table, start, kv_len, key_at, width, queries, N_KV, HEAD, BLOCK_D, PAGE, BLOCK_N, False)
        scores = dot_scores(queries, k, PRECISION)
        acc, top, total = absorb(scores, v, acc, top, total, scale, PRECISION, False)
    for start in range(open_high, high, BLOCK_N):
        k, v = load_block(kv, table, start, kv_len, key_at, width, queries, N_KV, HEAD, BLOCK_D, PAGE, BLOCK_N, True)
        past = q_pos[:, None] - (start + tl.arange(0, BLOCK_N))[None, :]
        sees = past >= 0
        if HAS_WINDOW:
            sees = sees & (past < window)
        scores = tl.where(sees, dot_scores(queries, k, PRECISION), float("-inf"))
        acc, top, total = absorb(scores, v, acc, top, total, scale, PRECISION, True)
    return acc, top, total


@triton.jit(do_not_specialize=["window", "M"])  # type: ignore[untyped-decorator]
def _prompt_attention_kernel(  # type: ignore[no-untyped-def]
    q, kv, cu_q, kv_lens, table, out, scale, window, q_row, q_head, width, M,
    N_KV: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_WINDOW: tl.constexpr, CUT: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest rows first
    head, request = tl.program_id(1), tl.program_id(2)
    begin = tl.load(cu_q + request).to(tl.int32)
    q_len = tl.load(cu_q + request + 1).to(tl.int32) - begin
    kv_len = tl.load(kv_lens + request).to(tl.int32)
    if tile * BLOCK_M >= q_len * GROUP:
        return
    lane = tile * BLOCK_M + tl.arange(0, BLOCK_M)  # a row for each query of the group's heads, heads fastest
    dim = tl.arange(0, BLOCK_D)
    q_at, q_head_at = begin.to(tl.int64) + lane // GROUP, head * GROUP + lane % GROUP
    real = (lane < q_len * GROUP)[:, None] & (dim < HEAD)[None, :]
    queries = tl.load(q + (q_at * q_row + q_head_at * q_head)[:, None] + dim[None, :], mask=real, other=0.0)

    q_pos = kv_len - q_len + lane // GROUP
    least = kv_len - q_len + tile * BLOCK_M // GROUP  # positions of the tile's first and last row
    most = tl.minimum(kv_len - q_len + (tile * BLOCK_M + BLOCK_M - 1) // GROUP, kv_len - 1)
    table += request.to(tl.int64) * M
    low, high = 0, most + 1
    open_low = 0  # from here to open_high all rows see all entries
    if HAS_WINDOW:
        low = tl.maximum(least - window + 1, 0) // BLOCK_N * BLOCK_N
        open_low = tl.cdiv(tl.maximum(most - window + 1, 0), BLOCK_N) * BLOCK_N
    open_high = tl.maximum((least + 1) // BLOCK_N * BLOCK_N, open_low)

    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    key_at = head * HEAD
    if CUT == 0:
        acc, top, total = _span(
            kv, table, queries, q_pos, low, high, open_low, open_high, high, key_at, width, window, scale,
            N_KV, HEAD, BLOCK_M, BLOCK_D, PAGE, BLOCK_N, HAS_WINDOW, PRECISION,
        )  # fmt: skip
    else:
        for cut in range(low // CUT * CUT, high, CUT):
            end = tl.minimum(cut + CUT, high)
            part, part_top, part_total = _span(
                kv, table, queries, q_pos, tl.maximum(cut, low), end, open_low, open_high, high, key_at, width, window,
                scale, N_KV, HEAD, BLOCK_M, BLOCK_D, PAGE, BLOCK_N, HAS_WINDOW, PRECISION,
            )  # fmt: skip
            part, log = close_part(part, part_top, part_total)
            acc, top, total = join(part, log, acc, top, total)

    acc = acc / tl.where(total == 0, 1.0, total)[:, None]  # a row that sees nothing stays zero
    out_at = q_at * (N_KV * GROUP) + q_head_at
    tl.store(out + out_at[:, None] * HEAD + dim[None, :], acc.to(out.dtype.element_ty), mask=real)


def prompt_attention(
    q: Tensor,
    kv: Tensor,
    cu_q: Tensor,
    kv_lens: Tensor,
    table: Tensor,
    max_q: int,
    scale: float,
    window: int | None,
    n_kv: int,
    *,
    steady: bool = False,
) -> Tensor:
    """As `prompt_attention_torch`, by the kernel on a GPU; in float64 by torch everywhere."""
    given = (q, kv, cu_q, kv_lens, table, max_q, scale, window, n_kv)
    if q.is_cuda and q.dtype != torch.float64:
        return prompt_attention_triton(*given, split_by_position=PART if steady else None)
    return prompt_attention_torch(*given, steady=steady)
