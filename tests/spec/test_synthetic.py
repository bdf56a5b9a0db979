"""Synthetic acceptance: a length asked for, whatever the head is worth."""

import pytest
import torch

from eagle3.config.schema import SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.spec.accept import synthetic
from eagle3.spec.batch import Draws, Sampling
from eagle3.spec.slots import SlotState
from eagle3.spec.tree import Tree, chain, kary
from helpers.pairs import LAYERS, SMALL, engine, near_pair, random_pair
from helpers.trace import serve

CPU = torch.device("cpu")
ROWS = 20_000


def state_of(tree: Tree) -> SlotState:
    tree = Tree(*(t.expand(ROWS, *t.shape[1:]) for t in tree.tensors()))
    plain = torch.zeros(ROWS)
    sampling = Sampling(plain, plain.int(), plain + 1, plain, torch.arange(ROWS))
    return SlotState(tree, torch.ones(ROWS, dtype=torch.bool), torch.full((ROWS,), 7), sampling, None)


@pytest.mark.parametrize("mean", [1.0, 1.25, 2.0, 2.9, 4.0])
def test_mean_length(mean: float) -> None:
    logits = torch.zeros(ROWS * 4, 5)
    done = synthetic(logits, state_of(chain(1, 4, CPU)), Draws(True, False), 3, mean=mean)
    assert done.counts.float().mean().item() == pytest.approx(mean, abs=0.015)
    assert set(done.counts.tolist()) <= {int(mean), int(mean) + 1}


def test_the_path_is_that_of_first_children() -> None:
    tree = kary(7, 2, CPU)
    tree.tokens[0] = torch.arange(10, 17)
    logits = torch.zeros(ROWS, 7, 5)
    logits[:, 3, 2] = 1.0  # node 3 is the first child of the first child
    done = synthetic(logits.flatten(0, 1), state_of(tree), Draws(True, False), 2, mean=3.0)
    assert done.nodes[0].tolist() == [1, 3]
    assert done.tokens[0].tolist() == [11, 13, 2]
    assert torch.equal(done.tokens, done.tokens[:1].expand(ROWS, 3))


def test_no_more_than_the_tree_has() -> None:
    done = synthetic(torch.zeros(ROWS * 3, 5), state_of(chain(1, 3, CPU)), Draws(True, False), 2, mean=9.0)
    assert set(done.counts.tolist()) == {3}


@pytest.mark.parametrize("shape", [DraftShape(3, 1, 4), DraftShape(3, 2, 7)], ids=["chain", "tree"])
def test_in_the_engine_a_random_head_is_as_long_as_asked(shape: DraftShape) -> None:
    target, head = random_pair(16, hidden=16)

    def run(seed: int) -> list[list[int]]:
        spec = SpecConfig(synthetic_acceptance=2.5)
        built = engine(target, (head, LAYERS), shape, max_seq_len=128, spec=spec)
        samplings = [{"max_new_tokens": 80, "seed": seed + i} for i in range(4)]
        return [t.accepted for t in serve(built, [[1, 2, 3]] * 4, samplings)]

    counts = run(0)
    flat = [n for row in counts for n in row]
    assert set(flat) == {1, 2}
    assert sum(flat) / len(flat) == pytest.approx(1.5, abs=0.15)
    assert run(0) == counts
    assert run(50) != counts


def test_a_mean_of_one_accepts_nothing_and_says_what_plain_decoding_says() -> None:
    target, head = near_pair()
    spec = SpecConfig(synthetic_acceptance=1.0)
    built = engine(target, (head, SMALL), DraftShape(3, 1, 4), max_seq_len=48, spec=spec)
    (trace,) = serve(built, [[1, 2, 3]], [{"max_new_tokens": 10}])
    (plain,) = serve(engine(target, max_seq_len=48), [[1, 2, 3]], [{"max_new_tokens": 10}])
    assert trace.tokens == plain.tokens
    assert trace.accepted == [0] * 9
