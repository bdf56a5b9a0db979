"""Slots: a chain at rest, a k-ary dummy, restored when freed; what is kept and what is not."""

import pytest
import torch

from eagle3.config.shape import DraftShape
from eagle3.spec.batch import Sampling
from eagle3.spec.slots import TreeSlots
from eagle3.spec.tree import Tree, kary
from helpers.slots import held

CPU = torch.device("cpu")


def test_at_rest() -> None:
    slots = TreeSlots(16, DraftShape(3, 2, 7), CPU)
    assert slots.dummy == 16
    assert slots.tree.tokens.shape == (17, 7)
    state = held(slots, [0, 15, 16])
    assert state.tree.first_child.tolist() == [[1, 2, 3, 4, 5, 6, -1]] * 2 + [[1, 3, 5, -1, -1, -1, -1]]
    assert state.tree.next_sibling.tolist() == [[-1] * 7] * 2 + [[-1, 2, -1, 4, -1, 6, -1]]
    assert state.tree.mask[:, :, 0].tolist() == [[1, 3, 7, 15, 31, 63, 127]] * 2 + [[1, 3, 5, 11, 19, 37, 69]]
    assert state.tree.depth[2].tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert state.length.tolist() == [0, 0, 0]
    assert state.has_tree.tolist() == [False] * 3


@pytest.mark.parametrize("drawn", [None, 5])
def test_write_keep_and_restore(drawn: int | None) -> None:
    slots = TreeSlots(3, DraftShape(2, 2, 5), CPU, drawn_from=drawn)
    rest = [t.clone() for t in slots.tree.tensors()]
    ids = torch.tensor([2, 0])
    tree = Tree(*(t.expand(2, *t.shape[1:]).clone() for t in kary(5, 2, CPU).tensors()))
    tree.tokens[:] = torch.arange(10).view(2, 5)
    probs = None if drawn is None else torch.rand(2, 2, 5)
    slots.write(ids, torch.tensor([True, False]), tree, torch.tensor([7, 8]), has_tree=True, probs=probs)
    state = held(slots, [2, 0])
    assert state.tree.tokens.tolist() == [[0, 1, 2, 3, 4], [0] * 5]
    assert state.length.tolist() == [7, 0]
    assert state.has_tree.tolist() == [True, False]
    assert state.tree.first_child.tolist()[1] == [1, 2, 3, 4, -1]
    if probs is not None:
        assert state.probs is not None
        assert torch.equal(state.probs[0], probs[0])
        assert not state.probs[1].any()

    slots.restore(torch.tensor([2]))
    assert all(torch.equal(a, b) for a, b in zip(slots.tree.tensors(), rest, strict=True))
    assert not slots.length.any()
    assert not slots.has_tree.any()
    assert slots.probs is None or not slots.probs.any()


def test_reading_is_a_copy() -> None:
    slots = TreeSlots(2, DraftShape(1, 1, 2), CPU)
    held(slots, [1]).tree.tokens.fill_(9)
    assert not slots.tree.tokens.any()


def test_admitted_parameters_stay_with_their_slots() -> None:
    slots = TreeSlots(4, DraftShape(1, 1, 2), CPU)
    new = Sampling(
        torch.tensor([0.5, 0.7]),
        torch.tensor([3, 4], dtype=torch.int32),
        torch.tensor([0.8, 0.9]),
        torch.tensor([0.1, 0.2]),
        torch.tensor([5, 6]),
    )
    slots.admit(torch.tensor([3, 1]), new)
    got = held(slots, [1, 3]).sampling
    assert [t.tolist() for t in got.tensors()] == [t.flip(0).tolist() for t in new.tensors()]
    assert slots.sampling.temperature.tolist() == [0, pytest.approx(0.7), 0, pytest.approx(0.5), 0]
