"""Degenerate drafts, the ends of sequences, stops inside runs, equal prompts."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagle3.config.shape import DraftShape
from eagle3.errors import CapacityError
from eagle3.models.eagle import EagleHead
from eagle3.spec.worker import Speculation
from helpers.pairs import SMALL, cycle_pair, engine, near_pair
from helpers.trace import plans, serve
from oracles.dense import accepted_counts

CHAIN, TREE, DEEP = DraftShape(3, 1, 4), DraftShape(3, 3, 9), DraftShape(7, 1, 8)
PROMPTS = [[1, 2, 3], [9], [4, 4, 4, 4, 4], [9]]
SAMPLINGS = [{"max_new_tokens": 12, "temperature": float(i % 2), "seed": i} for i in range(4)]


class Bent:
    """A head whose logits somebody bends."""

    def __init__(self, head: EagleHead, kind: str) -> None:
        self.head, self.kind = head, kind

    def __getattr__(self, name: str) -> object:
        return getattr(self.head, name)

    def logits(self, out: Tensor) -> Tensor:
        logits = self.head.logits(out)
        if self.kind == "certain":  # probabilities of exactly 1 and 0
            return torch.where(logits == logits.amax(-1, keepdim=True), 0.0, -torch.inf)
        if self.kind == "flat":
            return torch.zeros_like(logits)
        if self.kind == "nan in one row":
            logits = logits.clone()
            logits[len(logits) // 2] = torch.nan
            return logits
        return torch.full_like(logits, torch.nan)


@pytest.mark.parametrize("kind", ["certain", "flat", "nan in one row", "nan"])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_degenerate_drafts_change_no_output_and_orphan_no_node(kind: str, shape: DraftShape) -> None:
    target, head = near_pair()
    plain = serve(engine(target, max_seq_len=48), PROMPTS, SAMPLINGS)
    built = engine(target, (Bent(head, kind), SMALL), shape, max_seq_len=48)  # type: ignore[arg-type]
    spec = built.runner.worker.spec
    assert isinstance(spec, Speculation)
    trees = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(spec.drafter, name)

        def draft(self, rows: object) -> object:
            trees.append(spec.drafter.draft(rows)[0])  # type: ignore[arg-type]
            return trees[-1], None

    built.runner.worker = replace(built.runner.worker, spec=replace(spec, drafter=Watched()))  # type: ignore[arg-type]
    assert [t.tokens for t in serve(built, PROMPTS, SAMPLINGS)] == [t.tokens for t in plain]
    for tree in trees:
        seen = tree.first_child.ge(0).sum(1) + tree.next_sibling.ge(0).sum(1)
        assert (seen == shape.nodes - 1).all()  # every node but the root hangs on one link
        assert (tree.mask[:, :, 0] & 1).all()
        for depth, row in zip(tree.depth.tolist(), tree.mask[:, :, 0].tolist(), strict=True):
            assert [m.bit_count() - 1 for m in row] == depth
        assert ((tree.tokens >= 0) & (tree.tokens < 16)).all()


@pytest.mark.parametrize("shape", [CHAIN, TREE, DEEP], ids=["chain", "tree", "deep"])
def test_sequences_end_at_max_seq_len(shape: DraftShape) -> None:
    target, head = near_pair()
    prompts = [[1] * n for n in (10, 18, 19)]
    samplings = [{"max_new_tokens": 99}] * 3
    plain = serve(engine(target, max_seq_len=20), prompts, samplings)
    found = serve(engine(target, (head, SMALL), shape, max_seq_len=20, page=4), prompts, samplings)
    assert [t.tokens for t in found] == [t.tokens for t in plain]
    assert [len(t.tokens) for t in found] == [10, 2, 1]
    assert {t.reason for t in found} == {"length"}
    with pytest.raises(CapacityError):
        engine(target, (head, SMALL), shape, max_seq_len=20).add([1] * 20)


@pytest.mark.parametrize("stop", range(9))
def test_a_stop_at_every_depth_of_a_run(stop: int) -> None:
    """The cycle accepts 7 drafts a step: the first token comes with the prompt, the next eight from one step."""
    target, head = cycle_pair(16, layers=4)
    built = engine(target, (head, SMALL), DEEP, max_seq_len=64)
    found = serve(built, [[0], [0, 1]], [{"max_new_tokens": 30, "stop_token_ids": [1 + stop]}, {"max_new_tokens": 30}])
    assert found[0].tokens == list(range(1, 2 + stop))
    assert found[0].reason == "stop"
    assert found[0].accepted == ([] if stop == 0 else [7])
    assert found[1].tokens == [(2 + i) % 16 for i in range(30)]


@pytest.mark.parametrize("new", [1, 2, 3, 8, 9])
def test_fewer_tokens_wanted_than_drafted(new: int) -> None:
    target, head = cycle_pair(16, layers=4)
    built = engine(target, (head, SMALL), DEEP, max_seq_len=64)
    seen = plans(built)
    (trace,) = serve(built, [[0]], [{"max_new_tokens": new}])
    assert trace.tokens == list(range(1, new + 1))
    assert trace.reason == "length"
    assert trace.accepted == ([] if new == 1 else [7])
    assert new > 1 or not any(p.generations for p in seen)


@pytest.mark.parametrize("shape", [CHAIN, TREE, DraftShape(1, 1, 2), DraftShape(1, 4, 5)])
def test_equal_and_shared_prompts(shape: DraftShape) -> None:
    target, head = near_pair()
    shared = [3, 1, 4, 1, 5, 9, 2, 6]
    prompts = [shared, shared, shared[:5], [*shared, 5], shared]
    samplings = [{"max_new_tokens": 10, "temperature": float(i > 2), "seed": 7} for i in range(5)]
    plain = serve(engine(target, batch=5, max_seq_len=32), prompts, samplings)
    found = serve(engine(target, (head, SMALL), shape, batch=5, max_seq_len=32), prompts, samplings)
    assert [t.tokens for t in found] == [t.tokens for t in plain]
    assert found[0] == found[1]
    assert found[4].tokens != found[0].tokens


def test_a_tree_of_more_nodes_than_two_words_hold() -> None:
    target, head = near_pair()
    wide = DraftShape(6, 16, 97)  # four words a mask row, three in the draft loop
    long = [s | {"max_new_tokens": 20} for s in SAMPLINGS]
    plain = serve(engine(target, max_seq_len=48), PROMPTS, long)
    found = serve(engine(target, (head, SMALL), wide, max_seq_len=48), PROMPTS, SAMPLINGS)
    for prompt, trace, other in zip(PROMPTS, found, plain, strict=True):
        assert trace.tokens == other.tokens[:12]
        tokens = [*prompt, *other.tokens]
        assert trace.accepted == accepted_counts(target, head, SMALL, tokens, len(prompt), 12, wide)
    assert max(n for t in found for n in t.accepted) >= 3
