import math
import random

import pytest
import torch

from eagle3.ops.build_tree import build_tree
from eagle3.ops.verify_tree import verify_tree
from oracles.official_tree import Path, accept_greedy, candidates, generate, grow

IDENTITY = [0] * 64


def trace(path: Path) -> list[float]:
    """The worked trace of K = 2, D = 3: token ids say which child was taken."""
    table = {
        (9,): [0.6, 0.3],
        (9, 0): [0.5, 0.4],
        (9, 1): [0.9, 0.05],
        (9, 0, 0): [0.7, 0.2],
        (9, 1, 0): [0.5, 0.45],
    }
    return [math.log(p) for p in table[path]]


def bigram(seed: int, vocabulary: int) -> list[list[float]]:
    torch.manual_seed(seed)
    return (torch.randn(vocabulary, vocabulary, dtype=torch.float64) * 2).log_softmax(-1).tolist()  # type: ignore[no-any-return]


def test_worked_trace() -> None:
    scores = [0.6, 0.3, 0.30, 0.24, 0.27, 0.015, 0.21, 0.06, 0.135, 0.1215]
    flat = candidates(trace, 9, 2, 2, IDENTITY)
    assert [math.exp(c.score) for c in flat] == pytest.approx(scores)
    assert [c.parent for c in flat] == [-1, -1, 0, 0, 1, 1, 2, 2, 4, 4]
    tree = grow(trace, 9, 7, 2, 2, IDENTITY)
    assert tree.chosen == [0, 1, 2, 3, 4, 6]
    assert tree.tokens == [9, 0, 1, 0, 1, 0, 0]
    assert tree.depth == [0, 1, 1, 2, 2, 2, 3]
    assert [sum(bit << c for c, bit in enumerate(row)) for row in tree.mask] == [1, 3, 5, 11, 19, 37, 75]
    assert tree.retrieve_indices == [[0, 1, 4, -1], [0, 2, 5, -1], [0, 1, 3, 6]]


def test_d2t_is_an_offset() -> None:
    def draft(path: Path) -> list[float]:
        assert path[-1] in (50, 3, 14)
        return [-1.0, -0.5]

    tree = grow(draft, 50, 5, 2, 1, [3, 13])
    assert tree.tokens == [50, 14, 3, 14, 3]  # both children of 14, whose score is higher


@pytest.mark.parametrize(("top_k", "depth", "total"), [(1, 3, 5), (2, 2, 7), (3, 2, 10), (4, 4, 20), (3, 0, 3)])
def test_the_ops_build_and_verify_the_same_tree(top_k: int, depth: int, total: int) -> None:
    vocabulary, accepted = 8, 0
    for seed in range(12):
        logs, rng = bigram(seed, vocabulary), random.Random(seed)
        flat = candidates(lambda path, logs=logs: logs[path[-1]], 0, top_k, depth, IDENTITY)
        tree = grow(lambda path, logs=logs: logs[path[-1]], 0, total, top_k, depth, IDENTITY)
        got = build_tree(
            torch.tensor([0]),
            torch.tensor([[c.path[-1] for c in flat]]),
            torch.tensor([[c.score for c in flat]]),
            torch.tensor([[c.parent for c in flat[top_k::top_k]]], dtype=torch.int64),
            top_k,
            total,
        )
        bits = [sum(bit << c for c, bit in enumerate(row)) for row in tree.mask]
        assert [t[0].flatten().tolist() for t in got[:3]] == [tree.tokens, tree.depth, bits]

        follows = [rng.choice(sorted(range(vocabulary), key=lambda i, row=row: -row[i])[:3]) for row in logs]
        nodes, bonus = accept_greedy(tree, lambda path, follows=follows: follows[path[-1]])
        predicted = torch.tensor([[follows[t] for t in tree.tokens]])
        tokens, counts, path = verify_tree(got[0], got[3], got[4], predicted, torch.ones(1).bool(), depth + 1)
        count = int(counts)
        assert path[0, : count - 1].tolist() == nodes
        assert tokens[0, :count].tolist() == [tree.tokens[n] for n in nodes] + [bonus]
        accepted += len(nodes)
    assert accepted > 0


def test_output_is_the_targets_own() -> None:
    draft, target = bigram(1, 8), bigram(2, 8)
    follows = [max(range(8), key=row.__getitem__) for row in target]
    tokens, counts = generate(lambda path: draft[path[-1]], lambda path: follows[path[-1]], 3, 30, 9, 3, 2, IDENTITY)
    plain = [3]
    for _ in tokens:
        plain.append(follows[plain[-1]])
    assert tokens == plain[1:]
    assert len(tokens) == sum(counts) + 30


def test_a_draft_that_knows_the_target_is_always_right() -> None:
    logs = bigram(3, 8)
    follows = [max(range(8), key=row.__getitem__) for row in logs]
    _, counts = generate(lambda p: logs[p[-1]], lambda p: follows[p[-1]], 0, 10, 4, 1, 2, IDENTITY)
    assert counts == [3] * 10
