"""How the official EAGLE code grows, re-ranks, lays out and verifies a tree, restated slowly in plain Python.

Sizes are named as there: `total` nodes with the root, `top_k`, and `depth` expansions after the root's own,
so that drafted tokens reach level depth + 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Path = tuple[int, ...]  # target ids from the root on, the root included
Draft = Callable[[Path], Sequence[float]]  # log-probabilities over the draft vocabulary, after a path
Target = Callable[[Path], int]  # the target's token after a path


@dataclass(frozen=True)
class Candidate:
    """A drafted token: its path ends with it; `parent` is a flat index, -1 for the root."""

    path: Path
    score: float
    parent: int


@dataclass(frozen=True)
class OfficialTree:
    """Node 0 is the root; `chosen` are the flat indices of the others."""

    tokens: list[int]
    chosen: list[int]
    scores: list[float]
    parents: list[int]
    mask: list[list[bool]]
    depth: list[int]
    retrieve_indices: list[list[int]]


def candidates(draft: Draft, root: int, top_k: int, depth: int, d2t: Sequence[int]) -> list[Candidate]:
    """The flat list: k of level 1, then k² for each expansion, frontier node by frontier node."""

    def children(path: Path, score: float, parent: int) -> list[Candidate]:
        logs = draft(path)
        best = sorted(range(len(logs)), key=lambda i: (-logs[i], i))[:top_k]
        return [Candidate((*path, i + d2t[i]), score + logs[i], parent) for i in best]

    flat = children((root,), 0.0, -1)
    frontier = list(range(top_k))
    for _ in range(depth):
        start = len(flat)
        flat += [c for f in frontier for c in children(flat[f].path, flat[f].score, f)]
        frontier = sorted(range(start, len(flat)), key=lambda f: (-flat[f].score, f))[:top_k]
    return flat


def grow(draft: Draft, root: int, total: int, top_k: int, depth: int, d2t: Sequence[int]) -> OfficialTree:
    """The `total` - 1 best candidates in flat order, and who sees whom."""
    flat = candidates(draft, root, top_k, depth, d2t)
    chosen = sorted(sorted(range(len(flat)), key=lambda f: (-flat[f].score, f))[: total - 1])
    node = {-1: 0} | {f: i + 1 for i, f in enumerate(chosen)}
    parents = [-1] + [node[flat[f].parent] for f in chosen]
    mask = [[column in (0, row) for column in range(total)] for row in range(total)]
    for row in range(1, total):
        mask[row] = [a or b for a, b in zip(mask[row], mask[parents[row]], strict=True)]
    return OfficialTree(
        tokens=[root] + [flat[f].path[-1] for f in chosen],
        chosen=chosen,
        scores=[flat[f].score for f in chosen],
        parents=parents,
        mask=mask,
        depth=[sum(row) - 1 for row in mask],
        retrieve_indices=retrieve(parents),
    )


def retrieve(parents: Sequence[int]) -> list[list[int]]:
    """A row for each leaf, in ascending order: its path from the root, filled up with -1."""
    paths = []
    for leaf in range(len(parents)):
        if leaf in parents:
            continue
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        paths.append(path)
    longest = max(map(len, paths))
    return [path + [-1] * (longest - len(path)) for path in paths]


def accept_greedy(tree: OfficialTree, target: Target) -> tuple[list[int], int]:
    """Accepted nodes, without the root, and the next root: the first row with the longest agreed prefix."""
    best: list[int] = [0]
    for row in tree.retrieve_indices:
        agreed = [0]
        for node in row[1:]:
            if node < 0 or tree.tokens[node] != target(tuple(tree.tokens[n] for n in agreed)):
                break
            agreed.append(node)
        if len(agreed) > len(best):
            best = agreed
    return best[1:], target(tuple(tree.tokens[n] for n in best))


def generate(
    draft: Draft,
    target: Target,
    root: int,
    steps: int,
    total: int,
    top_k: int,
    depth: int,
    d2t: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Tokens after the root, and accepted counts without the bonus, of so many steps.

    Paths begin at a step's root, so `draft` and `target` must depend on no more than that.
    """
    tokens: list[int] = []
    counts: list[int] = []
    for _ in range(steps):
        tree = grow(draft, root, total, top_k, depth, d2t)
        nodes, root = accept_greedy(tree, target)
        tokens += [tree.tokens[n] for n in nodes] + [root]
        counts.append(len(nodes))
    return tokens, counts
