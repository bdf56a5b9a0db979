"""Trees of guesses, one a request: node 0 is the root, the last token emitted."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.ops.build_tree import layout, pack_bits


@dataclass(frozen=True)
class Tree:
    """B trees of N nodes; a parent stands before its children, siblings are linked in ascending order."""

    tokens: Tensor  # [B, N] i64
    depth: Tensor  # [B, N] i32, 0 for the root
    mask: Tensor  # [B, N, ceil(N / 32)] i32, bits of the node, its ancestors and the root
    first_child: Tensor  # [B, N] i32, -1: none
    next_sibling: Tensor  # [B, N] i32, -1: none

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The fields in order."""
        return self.tokens, self.depth, self.mask, self.first_child, self.next_sibling


def chain(rows: int, nodes: int, device: torch.device) -> Tree:
    """Trees [rows, nodes] in which each node but the last has one child; tokens are 0."""
    depth = torch.arange(nodes, device=device, dtype=torch.int32)
    none = torch.full_like(depth, -1)
    return Tree(
        tokens=torch.zeros(rows, nodes, dtype=torch.int64, device=device),
        depth=depth.repeat(rows, 1),
        mask=pack_bits(depth <= depth[:, None]).repeat(rows, 1, 1),
        first_child=torch.where(depth < nodes - 1, depth + 1, none).repeat(rows, 1),
        next_sibling=none.repeat(rows, 1),
    )


def chains(tokens: Tensor, rest: Tree) -> Tree:
    """Chains of `tokens` [B, N], the root first, over the links of `rest`, one chain [1, N]."""
    return Tree(tokens, *(t.expand(tokens.shape[0], *t.shape[1:]) for t in rest.tensors()[1:]))


def kary(nodes: int, top_k: int, device: torch.device) -> Tree:
    """One tree [1, nodes], filled level by level with K children a node; tokens are 0."""
    parent = (torch.arange(nodes, device=device) - 1).div(top_k, rounding_mode="floor")[None]
    return Tree(torch.zeros_like(parent), *layout(parent, nodes - 1))
