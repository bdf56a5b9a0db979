"""Choose a tree's nodes from all candidates of a draft loop, and lay out who descends from whom."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from eagle3.ops.dispatch import follow, overlapped
from eagle3.ops.select import ordered, topk

Layout = tuple[Tensor, Tensor, Tensor, Tensor]


def build_tree_torch(
    root: Tensor, tokens: Tensor, scores: Tensor, kept: Tensor, top_k: int, nodes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The root and the N - 1 best candidates: (tokens [B, N], then the four of `layout`).

    root [B] i64
    tokens, scores [B, K + K²(D-1)] i64, f32 (summed logs): the root's K children, then layer by layer the K
        children of each of the K nodes kept there; none may score above its parent
    kept [B, K(D-1)] i64, the index of each kept node among these candidates, layer by layer
    Nodes stand in the candidates' order: a parent before its children, siblings from the most probable on.
    """
    assert tokens.shape[1] >= nodes - 1
    chosen = topk(scores, nodes - 1)[1].sort(-1).values  # equal scores: the lower index, so never an orphan
    history = pad(chosen, (1, 0), value=-1)  # [B, N], the root as candidate -1
    parent = pad(kept, (1, 0), value=-1).gather(1, chosen // top_k)  # a group of K siblings has one parent
    parent = pad(torch.searchsorted(history, parent), (1, 0), value=-1)
    depth = 1 + kept.shape[1] // top_k
    return torch.cat([root[:, None], tokens.gather(1, chosen)], dim=1), *layout(parent, depth)


def layout(parent: Tensor, depth: int) -> Layout:
    """(depth [B, N], mask [B, N, W], first child [B, N], next sibling [B, N]), i32, of trees `depth` deep.

    parent [B, N] i64, -1 for the root, stands before its children. A mask row has the bits of the root, all
    ancestors and the node itself; links end with -1 and lead through siblings in ascending order.
    """
    ids = torch.arange(parent.shape[1], device=parent.device)
    at = ids.expand_as(parent)
    level = torch.zeros_like(parent)
    mask = (ids[:, None] == ids).expand(parent.shape[0], -1, -1)  # [B, N, N]
    up = parent.clamp(min=0)
    for _ in range(depth):
        level = level + (at > 0)
        at = up.gather(1, at)
        mask = mask | (at[:, :, None] == ids)
    child = parent[:, None, :] == ids[:, None]  # [B, N, N], column is a child of row
    younger = (parent[:, None, :] == parent[:, :, None]) & (ids > ids[:, None])  # column is a later sibling of row
    return level.int(), pack_bits(mask), _first(child), _first(younger)


def pack_bits(mask: Tensor) -> Tensor:
    """bool [..., n] as i32 [..., ceil(n / 32)]: column c is bit c % 32 of word c // 32, bit 31 the sign."""
    weight = torch.ones(32, dtype=torch.int64, device=mask.device) << torch.arange(32, device=mask.device)
    weight = torch.where(weight == 2**31, -weight, weight)
    words = pad(mask, (0, -mask.shape[-1] % 32)).view(*mask.shape[:-1], -1, 32)
    return torch.where(words, weight, 0).sum(-1).int()


def _first(mask: Tensor) -> Tensor:
    """i32 [...], the lowest set column of [..., n], or -1."""
    n = mask.shape[-1]
    low = torch.where(mask, torch.arange(n, device=mask.device), n).amin(-1)
    return torch.where(low < n, low, -1).int()


def build_tree_triton(
    root: Tensor, tokens: Tensor, scores: Tensor, kept: Tensor, top_k: int, nodes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `build_tree_torch`, in one launch: a program builds a request's tree."""
    (requests, history), device = tokens.shape, tokens.device
    assert history >= nodes - 1
    assert all(t.is_contiguous() for t in (root, tokens, scores, kept))
    words = -(-nodes // 32)
    out = torch.empty(requests, nodes, dtype=torch.int64, device=device)
    depth, child, sibling = torch.empty(3, requests, nodes, dtype=torch.int32, device=device)
    mask = torch.empty(requests, nodes, words, dtype=torch.int32, device=device)
    scratch = torch.empty(requests, history + 2 * nodes, dtype=torch.int32, device=device)
    block = triton.next_power_of_2(history)
    _build_tree_kernel[(requests,)](
        root,
        tokens,
        scores,
        kept,
        out,
        depth,
        mask,
        child,
        sibling,
        scratch,
        history,
        kept.shape[1],
        top_k,
        nodes,
        BLOCK=block,
        NODES=triton.next_power_of_2(nodes),
        WORDS=words,
        num_warps=2 if block <= 512 else 4,
        **overlapped(root),
    )
    return out, depth, mask, child, sibling


@triton.jit
def _cut(key, inside, wanted):  # type: ignore[no-untyped-def]
    """The `wanted` largest of int32 keys, the lower index among equals, as a mask over their block."""
    low = tl.min(tl.where(inside, key, 0x7FFFFFFF), 0).to(tl.int64)  # at least `wanted` keys are >= low
    high = tl.max(tl.where(inside, key, -0x80000000), 0).to(tl.int64) + 1  # fewer than that are >= high
    count = tl.sum(inside.to(tl.int32), 0)
    while (high - low > 1) & (count != wanted):
        middle = low + (high - low) // 2
        there = tl.sum((inside & (key >= middle.to(tl.int32))).to(tl.int32), 0)
        enough = there >= wanted
        count = tl.where(enough, there, count)
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
    above = inside & (key > low)
    equal = inside & (key == low)
    room = wanted - tl.sum(above.to(tl.int32), 0)
    return above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= room))


@triton.jit  # type: ignore[untyped-decorator]
def _build_tree_kernel(  # type: ignore[no-untyped-def]
    root,
    tokens,
    scores,
    kept,
    out,
    depth,
    mask,
    child,
    sibling,
    scratch,
    history,
    loop,
    top_k,
    nodes,
    BLOCK: tl.constexpr,
    NODES: tl.constexpr,
    WORDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    request = tl.program_id(0).to(tl.int64)
    row, own = request * nodes, scratch + request * (history + 2 * nodes)
    node_of, candidate_of, parent_of = own, own + history, own + history + nodes
    # choose candidates; a candidate's node is the number of those chosen up to it, after the root
    at = tl.arange(0, BLOCK)
    inside = at < history
    score = tl.load(scores + request * history + at, mask=inside, other=float("-inf"))
    chosen = _cut(ordered(score), inside, nodes - 1)
    node = tl.cumsum(chosen.to(tl.int32), 0)
    tl.store(node_of + at, node, mask=inside)
    tl.store(candidate_of + node, at, mask=chosen)
    token = tl.load(tokens + request * history + at, mask=chosen, other=0)
    tl.store(out + row + node, token, mask=chosen)
    tl.store(out + row, tl.load(root + request))
    tl.debug_barrier()  # what one thread stored, others load
    # parents; siblings are neighbours, as a group of K candidates has one parent
    i = tl.arange(0, NODES)
    real, some = i < nodes, (i > 0) & (i < nodes)
    group = tl.load(candidate_of + i, mask=some, other=-top_k) // top_k
    last = tl.load(candidate_of + i - 1, mask=some & (i > 1), other=-top_k) // top_k
    after = tl.load(candidate_of + i + 1, mask=some & (i + 1 < nodes), other=-top_k) // top_k
    up = tl.load(kept + request * loop + group - 1, mask=some & (group > 0), other=0)
    parent = tl.load(node_of + up, mask=some & (group > 0), other=0)
    tl.store(parent_of + i, parent, mask=real)
    tl.store(sibling + row + i, tl.where(some & (after == group), i + 1, -1), mask=real)
    tl.store(child + row + i, -1, mask=real)
    tl.debug_barrier()
    tl.store(child + row + parent, i, mask=some & (last != group))
    # climb to the root, all nodes at once
    level, above = tl.zeros([NODES], tl.int32), i
    for _ in range(1 + loop // top_k):
        level += (above > 0).to(tl.int32)
        above = tl.load(parent_of + above, mask=real, other=0)
    tl.store(depth + row + i, level, mask=real)
    for word in tl.static_range(WORDS):
        bits = tl.where(i // 32 == word, 1, 0) << (i % 32)
        above = i
        for _ in range(1 + loop // top_k):
            above = tl.load(parent_of + above, mask=real, other=0)
            bits |= tl.where(above // 32 == word, 1, 0) << (above % 32)
        tl.store(mask + (row + i) * WORDS + word, bits, mask=real)


def build_tree(
    root: Tensor, tokens: Tensor, scores: Tensor, kept: Tensor, top_k: int, nodes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `build_tree_torch`, by the kernel on a GPU."""
    build = build_tree_triton if tokens.is_cuda else build_tree_torch
    return build(root, tokens, scores, kept, top_k, nodes)
