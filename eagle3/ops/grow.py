"""A draft loop's bookkeeping: sum the scores, note the candidates, and pick the K nodes that are expanded next."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped
from eagle3.ops.select import index_of, key_of, topk, value_of


class History(NamedTuple):
    """All candidates of a draft loop, filled depth by depth; what `build_tree` reads."""

    tokens: Tensor  # [B, K + K²(D-1)] i64
    scores: Tensor  # the same, f32, summed logs
    kept: Tensor  # [B, K(D-1)] i64, the candidates expanded, depth by depth

    @classmethod
    def empty(cls, requests: int, top_k: int, depth: int, device: torch.device) -> "History":
        """Nothing in it yet."""
        loop = top_k * (depth - 1)
        tokens = torch.empty(requests, top_k + top_k * loop, dtype=torch.int64, device=device)
        kept = torch.empty(requests, loop, dtype=torch.int64, device=device)
        return cls(tokens, torch.empty_like(tokens, dtype=torch.float32), kept)


class Grown(NamedTuple):
    """The K best of the newest candidates, best first."""

    tokens: Tensor  # [B, K] i64
    scores: Tensor  # [B, K] f32
    feedback: Tensor | None  # [B, K, H], each one's parent's
    mask: Tensor | None  # [B, K, W] i32, the parent's bits and the node's own


def start_torch(scores: Tensor, tokens: Tensor, feedback: Tensor, last: Tensor, history: History, words: int) -> Grown:
    """The K nodes of depth 1 of each request go into the history, and are the first that are expanded.

    scores f32, tokens i64 [B, K], what the roots offer, best first; feedback [T, H], of which last [B] i64 is the
    roots' own. Their masks of so many words have their own bit: entry j of the loop is the j-th.
    """
    B, K = scores.shape
    history.tokens[:, :K], history.scores[:, :K] = tokens, scores
    column, word = torch.arange(K, device=scores.device), torch.arange(words, device=scores.device)
    history.kept[:, :K] = column[: history.kept.shape[1]]
    fed = feedback[last][:, None].repeat(1, K, 1)
    return Grown(tokens, scores, fed, _bits(column, word).repeat(B, 1, 1))


def _bits(column: Tensor, word: Tensor) -> Tensor:
    """[K, W] i32: in row j the bit of column[j]."""
    bit = torch.ones_like(column, dtype=torch.int32) << (column % 32).int()
    return torch.where(column[:, None] // 32 == word, bit[:, None], 0)


def start_triton(scores: Tensor, tokens: Tensor, feedback: Tensor, last: Tensor, history: History, words: int) -> Grown:
    """As `start_torch`, in one launch."""
    (B, K), width = scores.shape, feedback.shape[1]
    assert all(t.is_contiguous() for t in (scores, tokens, last, *history))
    assert feedback.stride(1) == 1
    fed = feedback.new_empty(B, K, width)
    mask = torch.empty(B, K, words, dtype=torch.int32, device=scores.device)
    block = min(1024, triton.next_power_of_2(width))
    _start_kernel[(B, triton.cdiv(width, block))](
        scores,
        tokens,
        feedback,
        last,
        *history,
        fed,
        mask,
        history.tokens.shape[1],
        history.kept.shape[1],
        feedback.stride(0),
        width,
        K,
        WORDS=words,
        NODES=triton.next_power_of_2(K),
        BLOCK=block,
        **overlapped(scores),
    )
    return Grown(tokens, scores, fed, mask)


@triton.jit  # type: ignore[untyped-decorator]
def _start_kernel(  # type: ignore[no-untyped-def]
    scores,
    tokens,
    feedback,
    last,
    all_tokens,
    all_scores,
    kept,
    fed,
    mask,
    history,
    loop,
    stride,
    width,
    K,
    WORDS: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    request = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(feedback + tl.load(last + request) * stride + column, mask=column < width)
    for j in range(K):
        tl.store(fed + (request * K + j) * width + column, value, mask=column < width)
    if tl.program_id(1) == 0:
        node = tl.arange(0, NODES)
        real = node < K
        at = request * history + node
        tl.store(all_tokens + at, tl.load(tokens + request * K + node, mask=real), mask=real)
        tl.store(all_scores + at, tl.load(scores + request * K + node, mask=real), mask=real)
        tl.store(kept + request * loop + node, node.to(tl.int64), mask=real & (node < loop))
        for word in tl.static_range(WORDS):
            own = tl.where(node // 32 == word, 1, 0) << (node % 32)
            tl.store(mask + (request * K + node) * WORDS + word, own, mask=real)


def start(scores: Tensor, tokens: Tensor, feedback: Tensor, last: Tensor, history: History, words: int) -> Grown:
    """As `start_torch`, by the kernel on a GPU."""
    return (start_triton if by_kernel(scores) else start_torch)(scores, tokens, feedback, last, history, words)


def grow_torch(
    scores: Tensor,
    tokens: Tensor,
    above: Tensor,
    feedback: Tensor | None,
    mask: Tensor | None,
    history: History,
    step: int,
) -> Grown:
    """Of the K nodes of depth `step`: their K² children go into the history, the best K are the next nodes.

    scores f32, tokens i64 [B · K, K], what each node offers; above [B, K] f32, the nodes' own summed scores;
    feedback [B · K, H] of the nodes and mask [B, K, W] i32 over the entries of the loop are handed down to
    the children, entry step · K + j to the j-th. None: nothing of the kind is wanted.
    """
    B, K = above.shape
    summed = (above[:, :, None] + scores.view(B, K, K)).flatten(1)
    offered = tokens.view(B, K * K)
    start = K + (step - 1) * K * K
    history.tokens[:, start : start + K * K] = offered
    history.scores[:, start : start + K * K] = summed
    best, index = topk(summed, K)
    history.kept[:, step * K : (step + 1) * K] = (start + index)[:, : history.kept.shape[1] - step * K]
    parent = index // K  # [B, K]
    if feedback is not None:
        feedback = feedback.view(B, K, -1)
        feedback = feedback.gather(1, parent[:, :, None].expand(-1, -1, feedback.shape[2]))
    if mask is not None:
        column, word = step * K + torch.arange(K, device=mask.device), torch.arange(mask.shape[2], device=mask.device)
        mask = mask.gather(1, parent[:, :, None].expand_as(mask)) | _bits(column, word)
    return Grown(offered.gather(1, index), best, feedback, mask)


def grow_triton(
    scores: Tensor,
    tokens: Tensor,
    above: Tensor,
    feedback: Tensor | None,
    mask: Tensor | None,
    history: History,
    step: int,
) -> Grown:
    """As `grow_torch`, in one launch."""
    B, K = above.shape
    given = (scores, tokens, above, feedback, mask, *history)
    assert all(t is None or t.is_contiguous() for t in given)
    width = 0 if feedback is None else feedback.shape[1]
    best = torch.empty_like(above)
    chosen = torch.empty(B, K, dtype=torch.int64, device=above.device)
    fed = None if feedback is None else feedback.new_empty(B, K, width)
    rows = None if mask is None else torch.empty_like(mask)
    block = min(1024, triton.next_power_of_2(max(width, 1)))
    _grow_kernel[(B, max(1, triton.cdiv(width, block)))](
        scores,
        tokens,
        above,
        scores if feedback is None else feedback,
        scores if mask is None else mask,
        *history,
        chosen,
        best,
        scores if fed is None else fed,
        scores if rows is None else rows,
        history.tokens.shape[1],
        history.kept.shape[1],
        width,
        K,
        step,
        WORDS=0 if mask is None else mask.shape[2],
        FEED=feedback is not None,
        CELLS=triton.next_power_of_2(K * K),
        BLOCK=block,
        num_warps=1 if K <= 8 else 4,
        **overlapped(scores),
    )
    return Grown(chosen, best, fed, rows)


@triton.jit  # type: ignore[untyped-decorator]
def _grow_kernel(  # type: ignore[no-untyped-def]
    scores,
    tokens,
    above,
    feedback,
    mask,
    all_tokens,
    all_scores,
    kept,
    chosen,
    best,
    fed,
    rows,
    history,
    loop,
    width,
    K,
    step,
    WORDS: tl.constexpr,
    FEED: tl.constexpr,
    CELLS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    request, first = tl.program_id(0).to(tl.int64), tl.program_id(1) == 0
    cell = tl.arange(0, CELLS)
    inside = cell < K * K
    square, start = request * K * K, K + (step - 1) * K * K
    summed = tl.load(above + request * K + cell // K, mask=inside, other=0.0)
    summed += tl.load(scores + square + cell, mask=inside, other=0.0)
    if first:
        offered = tl.load(tokens + square + cell, mask=inside, other=0)
        tl.store(all_tokens + request * history + start + cell, offered, mask=inside)
        tl.store(all_scores + request * history + start + cell, summed, mask=inside)
    key = tl.where(inside, key_of(summed, cell), -0x8000000000000000)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for j in range(K):
        top = tl.max(key, 0)
        key = tl.where(key == top, -0x8000000000000000, key)
        index = index_of(top)
        parent, node = request * K + index // K, request * K + j
        if FEED:
            value = tl.load(feedback + parent * width + column, mask=column < width)
            tl.store(fed + node * width + column, value, mask=column < width)
        if first:
            tl.store(chosen + node, tl.load(tokens + square + index))
            tl.store(best + node, value_of(top))
            entry = step * K + j
            tl.store(kept + request * loop + entry, start + index, mask=entry < loop)
            for word in tl.static_range(WORDS):
                own = tl.where(entry // 32 == word, 1, 0) << (entry % 32)
                tl.store(rows + node * WORDS + word, tl.load(mask + parent * WORDS + word) | own)


def grow(
    scores: Tensor,
    tokens: Tensor,
    above: Tensor,
    feedback: Tensor | None,
    mask: Tensor | None,
    history: History,
    step: int,
) -> Grown:
    """As `grow_torch`, by the kernel on a GPU."""
    return (grow_triton if by_kernel(scores) else grow_torch)(scores, tokens, above, feedback, mask, history, step)
