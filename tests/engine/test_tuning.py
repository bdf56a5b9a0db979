from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagle3.config.shape import DraftShape
from eagle3.engine import tuning
from eagle3.engine.tuning import streamed, tune_step, work
from eagle3.models.decoder import Decoder
from eagle3.ops.streams import block_rows
from helpers.pairs import engine, facts, random_head, random_target

CPU = torch.device("cpu")


def test_every_weight_is_tuned_at_the_rows_of_a_step() -> None:
    target = random_target(facts(40, layers=6))
    head = random_head(target)
    shape = DraftShape(depth=3, top_k=4, nodes=20)
    worker = engine(target, (head, (1, 2, 3)), shape).runner.worker
    seen: dict[tuple[torch.Size, bool], tuple[int, list[int]]] = {}
    for weights, gated, counts in work(worker, [1, 2, 8]):
        assert len({w.shape for w in weights}) == 1
        assert len({block_rows(n) for n in counts}) == len(counts)
        seen[weights[0].shape, gated] = len(weights), counts
    qkv, up, lm = target.layers[0].attn.qkv.weight, target.layers[0].mlp.gate_up.weight, head.lm_head.weight
    assert {block_rows(n) for n in seen[qkv.shape, False][1]} == {32, 64}  # 20 and 40 rows; 160 are the library's
    assert seen[qkv.shape, False][0] == 6
    assert seen[up.shape, True][0] == 7  # the head's is of the same shape
    assert seen[lm.shape, False][0] == 1 + (target.lm_head.weight.shape == lm.shape)
    assert {block_rows(n) for n in seen[head.fc.weight.shape, False][1]} == {32}


def test_tied_weights_count_once_and_steady_ones_not_at_all() -> None:
    known = replace(facts(40, layers=2), tied=True)
    kept = {"max_positions": 64, "max_seq_len": 64, "dtype": torch.float32, "device": CPU}
    tied = Decoder(known, **kept)
    assert sum(w is tied.embed.weight for w, _ in streamed(tied)) == 1
    assert sum(gated for _, gated in streamed(tied)) == 2
    assert list(streamed(Decoder(known, steady=True, **kept))) == []


def test_what_is_found_is_saved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = engine(random_target(facts(40, layers=6))).runner.worker
    known: set[object] = set()
    saved: list[torch.device] = []

    def tune(weights: list[Tensor], count: int, run: object, *, gated: bool) -> bool:
        name = (weights[0].shape, block_rows(count), gated)
        new = name not in known
        known.add(name)
        return new

    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.setattr(tuning, "save", saved.append)
    assert tune_step(worker, [1, 2]) == len(known) > 3
    assert tune_step(worker, [1, 2]) == 0
    assert len(saved) == 1
