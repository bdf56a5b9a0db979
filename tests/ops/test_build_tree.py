import math
import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from eagle3.ops.build_tree import build_tree, build_tree_torch, build_tree_triton, layout, pack_bits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# depth-1 probabilities .6 .3; their children .5 .4 / .9 .05; those of candidates 2 and 4: .7 .2 / .5 .45
TRACE = [0.6, 0.3, 0.30, 0.24, 0.27, 0.015, 0.21, 0.06, 0.135, 0.1215]
KEPT = [0, 1, 2, 4]


def built(scores: list[list[float]], kept: list[list[int]], top_k: int, nodes: int) -> tuple[Tensor, ...]:
    values = torch.tensor(scores)
    tokens = 100 + torch.arange(values.shape[1]).expand(len(scores), -1)
    root = torch.arange(len(scores))
    table = torch.tensor(kept, dtype=torch.int64).view(len(scores), -1)
    return build_tree(root, tokens, values, table, top_k, nodes)


@pytest.mark.parametrize(
    ("nodes", "chosen", "child", "sibling", "depth", "mask"),
    [
        pytest.param(1, [], [-1], [-1], [0], [1], id="root-alone"),
        pytest.param(4, [0, 1, 2], [1, 3, -1, -1], [-1, 2, -1, -1], [0, 1, 1, 2], [1, 3, 5, 11], id="three"),
        pytest.param(
            5,
            [0, 1, 2, 4],
            [1, 3, 4, -1, -1],
            [-1, 2, -1, -1, -1],
            [0, 1, 1, 2, 2],
            [1, 3, 5, 11, 21],
            id="four",
        ),
        pytest.param(
            6,
            [0, 1, 2, 3, 4],
            [1, 3, 5, -1, -1, -1],
            [-1, 2, -1, 4, -1, -1],
            [0, 1, 1, 2, 2, 2],
            [1, 3, 5, 11, 19, 37],
            id="five",
        ),
        pytest.param(
            7,
            [0, 1, 2, 3, 4, 6],
            [1, 3, 5, 6, -1, -1, -1],
            [-1, 2, -1, 4, -1, -1, -1],
            [0, 1, 1, 2, 2, 2, 3],
            [1, 3, 5, 11, 19, 37, 75],
            id="six",
        ),
    ],
)
def test_worked_trace(
    nodes: int, chosen: list[int], child: list[int], sibling: list[int], depth: list[int], mask: list[int]
) -> None:
    scores = [math.log(p) for p in TRACE]
    got = built([scores], [KEPT], 2, nodes)
    want = [[0, *(100 + h for h in chosen)], depth, mask, child, sibling]
    assert [t[0].flatten().tolist() for t in got] == want
    assert [t.dtype for t in got] == [torch.int64] + [torch.int32] * 4


def test_guided_example() -> None:
    # candidates 0, 1, 2 and 4 of K = 2, D = 2
    _, depth, mask, child, sibling = built([[-1.0, -2.0, -3.0, -9.0, -4.0, -9.0]], [[0, 1]], 2, 5)
    assert child.tolist() == [[1, 3, 4, -1, -1]]
    assert sibling.tolist() == [[-1, 2, -1, -1, -1]]
    assert depth.tolist() == [[0, 1, 1, 2, 2]]
    assert mask.flatten().tolist() == [1, 3, 5, 11, 21]


def test_one_child_a_layer_gives_a_chain() -> None:
    tokens, depth, mask, child, sibling = built([[-0.1, -0.2, -0.3, -0.4]], [[0, 1, 2]], 1, 5)
    assert tokens.tolist() == [[0, 100, 101, 102, 103]]
    assert child.tolist() == [[1, 2, 3, 4, -1]]
    assert sibling.tolist() == [[-1] * 5]
    assert depth.tolist() == [[0, 1, 2, 3, 4]]
    assert mask.flatten().tolist() == [1, 3, 7, 15, 31]


def test_mask_words_are_packed_with_the_sign_as_bit_31() -> None:
    scores = [[-0.1 * i for i in range(39)]]
    mask = built(scores, [list(range(38))], 1, 40)[2][0]
    rows = {30: [2147483647, 0], 31: [-1, 0], 32: [-1, 1], 35: [-1, 15], 39: [-1, 255]}
    assert {i: mask[i].tolist() for i in rows} == rows


def test_draft_loop_masks() -> None:
    # K = 2: kept parents 0, 1, then 0, 0; no root among these columns
    rows = [[0], [1], [0, 2], [1, 3], [0, 2, 4], [0, 2, 5]]
    dense = torch.tensor([[column in row for column in range(6)] for row in rows])
    assert pack_bits(dense).flatten().tolist() == [1, 2, 5, 10, 21, 37]


class Rebuilt:
    """The same tree, slowly, from lists."""

    def __init__(self, scores: list[float], kept: list[int], top_k: int, nodes: int) -> None:
        value = [-math.inf if math.isnan(s) else s for s in scores]
        best = sorted(range(len(value)), key=lambda h: (-value[h], h))[: nodes - 1]
        self.chosen = sorted(best)
        parents = [-1] + [self._parent(h, kept, top_k) for h in self.chosen]
        children = [[i for i in range(nodes) if parents[i] == p] for p in range(nodes)]
        self.child = [c[0] if c else -1 for c in children]
        self.sibling = [-1] * nodes
        for family in children:
            for left, right in pairwise(family):
                self.sibling[left] = right
        lineage = []
        for i in range(nodes):
            line = [i]
            while parents[line[-1]] >= 0:
                line.append(parents[line[-1]])
            lineage.append(line)
        self.depth = [len(line) - 1 for line in lineage]
        self.bits = [sum(1 << node for node in line) for line in lineage]

    def _parent(self, history: int, kept: list[int], top_k: int) -> int:
        if history < top_k:
            return 0
        ancestor = kept[history // top_k - 1]
        assert ancestor in self.chosen, "an orphan"
        return self.chosen.index(ancestor) + 1


def grown(rng: random.Random, top_k: int, depth: int, log: object) -> tuple[list[float], list[int]]:
    """Scores and kept nodes of a draft loop whose log-probabilities come from `log`."""

    def fresh() -> list[float]:
        return sorted((log(rng) for _ in range(top_k)), reverse=True)  # type: ignore[operator]

    def key(pair: tuple[int, float]) -> tuple[float, int]:
        return (math.inf if math.isnan(pair[1]) else -pair[1], pair[0])

    scores = fresh()
    frontier, kept = list(enumerate(scores)), []
    for _ in range(depth - 1):
        kept += [h for h, _ in frontier]
        layer = [s + step for _, s in frontier for step in fresh()]
        frontier = sorted(enumerate(layer, start=len(scores)), key=key)[:top_k]
        scores += layer
    return scores, kept


LOGS = {
    "random": lambda rng: -rng.random() * 4,
    "coarse": lambda rng: -float(rng.randint(0, 2)),
    "certain": lambda rng: 0.0,
    "impossible": lambda rng: -math.inf if rng.random() < 0.5 else -1.0,
    "broken": lambda rng: math.nan,
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS.keys())
@pytest.mark.parametrize(
    ("top_k", "depth", "nodes"),
    [(1, 4, 5), (2, 3, 7), (3, 3, 8), (4, 2, 9), (4, 4, 17), (7, 6, 40), (3, 1, 3)],
)
def test_equals_a_slow_rebuild(top_k: int, depth: int, nodes: int, log: object) -> None:
    rng = random.Random(top_k * 100 + depth)
    cases = [grown(rng, top_k, depth, log) for _ in range(6)]
    got = built([s for s, _ in cases], [k for _, k in cases], top_k, nodes)
    for b, (scores, kept) in enumerate(cases):
        want = Rebuilt(torch.tensor(scores).tolist(), kept, top_k, nodes)
        tokens, depths, mask, child, sibling = (t[b] for t in got)
        assert tokens.tolist() == [b, *(100 + h for h in want.chosen)]
        assert depths.tolist() == want.depth
        assert child.tolist() == want.child
        assert sibling.tolist() == want.sibling
        words = [[w & 0xFFFFFFFF for w in row] for row in mask.tolist()]
        assert [sum(w << 32 * i for i, w in enumerate(row)) for row in words] == want.bits


def test_layout_of_several_trees() -> None:
    parent = torch.tensor([[-1, 0, 0, 2], [-1, 0, 1, 2]])
    depth, mask, child, sibling = layout(parent, 3)
    assert depth.tolist() == [[0, 1, 1, 2], [0, 1, 2, 3]]
    assert mask.squeeze(-1).tolist() == [[1, 3, 5, 13], [1, 3, 7, 15]]
    assert child.tolist() == [[1, -1, 3, -1], [1, 2, 3, -1]]
    assert sibling.tolist() == [[-1, 2, -1, -1], [-1] * 4]


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS.keys())
@pytest.mark.parametrize(
    ("top_k", "depth", "nodes"),
    [(1, 4, 5), (1, 1, 2), (2, 3, 7), (4, 2, 1), (4, 4, 33), (7, 6, 40), (3, 1, 3), (3, 1, 4), (10, 6, 60)],
)
def test_triton_equals_torch(top_k: int, depth: int, nodes: int, log: object) -> None:
    rng = random.Random(top_k * 100 + depth)
    cases = [grown(rng, top_k, depth, log) for _ in range(3)]
    scores = torch.tensor([s for s, _ in cases], device=DEVICE)
    kept = torch.tensor([k for _, k in cases], dtype=torch.int64, device=DEVICE).view(3, -1)
    tokens = torch.randint(0, 1 << 40, scores.shape, device=DEVICE)
    root = torch.arange(3, device=DEVICE)
    want = build_tree_torch(root, tokens, scores, kept, top_k, nodes)
    got = build_tree_triton(root, tokens, scores, kept, top_k, nodes)
    assert [t.dtype for t in got] == [t.dtype for t in want]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(got, want, strict=True))


def test_triton_breaks_ties_by_index_at_the_cut() -> None:
    # all children of one node score as it does; -0.0 and 0.0 are one score
    scores = torch.tensor([[0.0, -0.0, -0.0, 0.0, 0.0, -0.0], [-1.0, -1.0, -1.0, -2.0, -1.0, -1.0]], device=DEVICE)
    kept = torch.tensor([[0, 1]] * 2, device=DEVICE)
    tokens = torch.arange(12, device=DEVICE).view(2, 6)
    for nodes in range(1, 8):
        given = (torch.zeros(2, dtype=torch.int64, device=DEVICE), tokens, scores, kept, 2, nodes)
        got, want = build_tree_triton(*given), build_tree_torch(*given)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(got, want, strict=True))
