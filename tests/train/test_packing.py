"""Rows, epochs and the tensors of a pass."""

from random import Random

import pytest
import torch

from eagle3.train.packing import Schedule, batch_of, chunks, pack, sent
from eagle3.train.samples import Sample
from helpers.pairs import CPU

LENGTHS = [Random(i).randint(1, 25) for i in range(200)]


def schedule(**changes: int) -> Schedule:
    return Schedule(LENGTHS, 40, **{"seed": 3, "epochs": 3, "per_update": 4} | changes)


def test_every_sample_has_one_place_and_no_row_is_too_long() -> None:
    rows = pack(range(200), LENGTHS, 40)
    assert sorted(i for row in rows for i in row) == list(range(200))
    assert max(sum(LENGTHS[i] for i in row) for row in rows) <= 40
    assert sum(LENGTHS) / (40 * len(rows)) > 0.95


def test_an_epoch_is_shuffled_by_seed_and_number_alone() -> None:
    assert schedule().epoch(1) == schedule(epochs=9, per_update=1).epoch(1)
    assert schedule().epoch(1) != schedule().epoch(0)
    assert schedule().epoch(1) != schedule(seed=4).epoch(1)


def test_updates_are_the_epochs_one_after_the_other() -> None:
    made = schedule()
    rows = [row for update in range(made.updates) for row in made.of_update(update)]
    every = [row for epoch in range(3) for row in made.epoch(epoch)]
    assert rows[: len(every)] == every
    assert len(rows) == 4 * made.updates
    assert rows[len(every) :] == [()] * (len(rows) - len(every))
    assert schedule().of_update(5) == made.of_update(5), "wherever a run begins"
    assert made.epochs_at(0) == 0
    assert made.epochs_at(made.updates) == 3
    assert 1 < made.epochs_at(made.updates // 2) < 2


def test_tensors() -> None:
    rows = [[Sample((5, 6, 7), ((1, 3),)), Sample((8, 9), ((0, 1),))], []]
    batch = batch_of(rows, 6, CPU)
    assert batch.lengths == (3, 2, 1, 6)
    assert batch.ids.tolist() == [5, 6, 7, 8, 9, 0, *[0] * 6]
    assert batch.positions.tolist() == [0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 4, 5]
    assert batch.left.tolist() == [2, 1, 0, 1, 0, 0, 5, 4, 3, 2, 1, 0]
    assert batch.mask.tolist() == [False, True, False, True, *[False] * 8], "a last token has no target behind it"
    assert batch.document.tolist() == [0, 0, 0, 1, 1, 2, *[3] * 6]
    assert batch.asked.tolist() == [0, 1, 3], "the written ones, and the one before an answer"
    assert batch.ahead(batch.ids, 1).tolist() == [6, 7, 0, 9, 0, 0, *[0] * 6]
    assert batch.ahead(batch.ids, 2).tolist() == [7, 0, 0, 0, 0, 0, *[0] * 6]
    steps = torch.arange(4)[:, None]
    assert torch.equal(batch.ahead(batch.ids, steps), torch.stack([batch.ahead(batch.ids, s) for s in range(4)]))
    far = batch.ahead(torch.ones(12, dtype=torch.bool), 5)
    assert far.dtype == torch.bool
    assert far.tolist() == [*[False] * 6, True, *[False] * 5]


def test_what_is_sent_arrives() -> None:
    odd = [torch.arange(3) > 1, torch.randn(3, 5).T, torch.arange(0), torch.arange(6).int().view(2, 3), torch.ones(7)]
    for there, here in zip(sent(odd, CPU), odd, strict=True):
        assert there.dtype == here.dtype
        assert torch.equal(there, here)


@pytest.mark.parametrize("count", [3, 4])
def test_chunks_are_filled_up(count: int) -> None:
    parts = list(chunks([(i,) for i in range(count)], 2))
    assert [len(part) for part in parts] == [2, 2]
    assert [i for part in parts for row in part for i in row] == list(range(count))
