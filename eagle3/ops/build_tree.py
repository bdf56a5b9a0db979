"""Choose a tree's nodes from all candidates of a draft loop, and lay out who descends from whom."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from eagle3.ops.select import topk

Layout = tuple[Tensor, Tensor, Tensor, Tensor]


def build_tree(
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
