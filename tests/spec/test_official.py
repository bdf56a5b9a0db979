"""The drafter's tree is the one of the official code, grown from a dense restatement of the head."""

import math
from itertools import pairwise

import numpy as np
import pytest

from eagle3.config.shape import DraftShape
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from eagle3.spec.tree import Tree
from helpers.pairs import SMALL, engine, facts, random_head, random_target
from helpers.slots import held
from helpers.trace import watch
from oracles.dense import accepted_counts, drafts, head_pass, offsets, target_pass
from oracles.official_tree import OfficialTree, candidates, grow

SHAPES = [DraftShape(1, 2, 3), DraftShape(3, 2, 4), DraftShape(3, 2, 7), DraftShape(2, 4, 12), DraftShape(3, 3, 13)]
VOCAB, NEW = 8, 6
PAIRS = 40  # times five shapes: 200 pairs of a head and a shape


def tiny_pair(seed: int) -> tuple[Decoder, EagleHead]:
    target = random_target(facts(VOCAB, hidden=8, layers=3, heads=2, kv_heads=1 + seed % 2), seed=seed)
    return target, random_head(target, seed=seed + 1000, draft_vocab=VOCAB - seed % 3)


def bits(row: list[list[int]], nodes: int) -> list[list[bool]]:
    return [[bool(words[c // 32] >> c % 32 & 1) for c in range(nodes)] for words in row]


def assert_same(tree: Tree, want: OfficialTree, scores: dict[tuple[int, ...], float]) -> None:
    """Nodes in order, or by value where scores tie; masks, depths and links tell the same parents."""
    nodes = len(want.tokens)
    mask = bits(tree.mask[0].tolist(), nodes)
    paths = [tuple(int(tree.tokens[0, c]) for c in range(nodes) if row[c]) for row in mask]
    got = sorted(scores[p] for p in paths[1:])
    assert got == pytest.approx(sorted(want.scores), abs=1e-6)
    assert len(set(paths)) == nodes
    assert tree.depth[0].tolist() == [len(p) - 1 for p in paths]
    parents = [-1] + [paths.index(p[:-1]) for p in paths[1:]]
    child, sibling = tree.first_child[0].tolist(), tree.next_sibling[0].tolist()
    for node in range(nodes):
        chain, at = [], child[node]
        while at >= 0:
            chain.append(at)
            at = sibling[at]
        assert chain == [c for c in range(nodes) if parents[c] == node]
    if min((abs(a - b) for a, b in pairwise(got)), default=1.0) > 1e-6:  # no tie inside
        assert tree.tokens[0].tolist() == want.tokens
        assert mask == want.mask
        assert tree.depth[0].tolist() == want.depth


@pytest.mark.parametrize("seed", range(PAIRS))
def test_tree_and_accepted_counts(seed: int) -> None:
    target, head = tiny_pair(seed)
    prompt = [seed % VOCAB, 3, 5, 1][: 1 + seed % 4]
    (plain,) = engine(target, batch=1).generate([prompt], [{"max_new_tokens": NEW + 4}])
    tokens = [*prompt, *plain.token_ids]
    outputs, _ = target_pass(target, tokens)
    captured = np.concatenate([outputs[i] for i in SMALL], axis=1)
    for shape in SHAPES:
        built = engine(target, (head, SMALL), shape, batch=1, max_seq_len=32)
        traces = watch(built)
        built.add(prompt, request_id="0", max_new_tokens=NEW)
        built.step()  # the prompt: the slot holds the first tree
        root, draft = len(prompt), drafts(head, captured, tokens, len(prompt))
        flat = candidates(draft, tokens[root], shape.top_k, shape.depth - 1, offsets(head))
        want = grow(draft, tokens[root], shape.nodes, shape.top_k, shape.depth - 1, offsets(head))
        slots = built.runner.worker.slots
        assert slots.length[0] == root
        assert_same(held(slots, [0]).tree, want, {c.path: c.score for c in flat})
        while not built.idle:
            built.step()
        assert traces["0"].tokens == plain.token_ids[:NEW]
        assert traces["0"].accepted == accepted_counts(target, head, SMALL, tokens, root, NEW, shape)


def test_the_dense_target_is_the_target() -> None:
    target, _ = tiny_pair(1)
    (plain,) = engine(target, batch=1).generate([[1, 2]], [{"max_new_tokens": 10}])
    _, logits = target_pass(target, [1, 2, *plain.token_ids])
    assert logits.argmax(-1).tolist()[1:-1] == plain.token_ids


def test_scores_are_summed_log_probabilities() -> None:
    _, head = tiny_pair(2)
    features = np.random.default_rng(0).normal(size=(3, 8))
    logs, feedback = head_pass(head, [1, 2, 3], features)
    assert math.isclose(float(np.exp(logs).sum()), 1.0)
    assert feedback.shape == (8,)
