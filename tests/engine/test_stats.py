"""What is told of drafting: from counters to numbers, and from an engine's steps to counters."""

import json
import logging
from dataclasses import asdict
from typing import Any

import pytest
import torch

from eagle3.config.schema import SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine, Result
from eagle3.engine.request import Request, SamplingParams
from eagle3.engine.stats import Acceptance, SpecMetrics
from helpers.pairs import LAYERS, cycle_pair, engine, facts, random_pair, random_target

CHAIN = DraftShape(depth=3, top_k=1, nodes=4)
TREE = DraftShape(depth=3, top_k=2, nodes=7)
PARAMS = SamplingParams(99, 0.0, 0, 1.0, 0.0, 0, frozenset())


def cycle(shape: DraftShape, bad: tuple[int, ...] = (), spec: SpecConfig | None = None) -> Engine:
    target, head = cycle_pair(16, bad)
    return engine(target, (head, LAYERS), shape, spec=spec)


def spec(result: Result) -> SpecMetrics:
    assert result.metrics is not None
    assert result.metrics.spec is not None
    return result.metrics.spec


@pytest.mark.parametrize(
    ("histogram", "nodes", "tau", "rate", "positions", "conditional"),
    [
        pytest.param([0, 0, 0, 0], 4, None, None, [None] * 3, [None] * 3, id="no-step"),
        pytest.param([5, 0, 0, 0], 4, 1.0, 0.0, [0.0] * 3, [0.0, None, None], id="nothing-accepted"),
        pytest.param([0, 0, 0, 2], 4, 4.0, 1.0, [1.0] * 3, [1.0] * 3, id="all-accepted"),
        pytest.param([1, 1, 0, 2], 4, 2.75, 7 / 12, [0.75, 0.5, 0.5], [0.75, 2 / 3, 1.0], id="mixed"),
        pytest.param([1, 1, 0, 2], 7, 2.75, 7 / 24, [0.75, 0.5, 0.5], [0.75, 2 / 3, 1.0], id="a-tree-proposes-more"),
        pytest.param([1, 3], 2, 1.75, 0.75, [0.75], [0.75], id="depth-one"),
    ],
)
def test_numbers_of_a_histogram(
    histogram: list[int],
    nodes: int,
    tau: float | None,
    rate: float | None,
    positions: list[float | None],
    conditional: list[float | None],
) -> None:
    m = SpecMetrics.of(histogram, nodes, valid=True)
    assert m.num_spec_steps == sum(histogram)
    assert m.num_draft_tokens == sum(histogram) * (nodes - 1)
    assert m.num_accepted_draft_tokens == sum(i * n for i, n in enumerate(histogram))
    assert m.mean_acceptance_length == tau
    assert m.draft_acceptance_rate == (None if rate is None else pytest.approx(rate))
    assert m.acceptance_histogram == histogram
    assert m.per_position_acceptance_rate == positions
    assert m.conditional_acceptance_rate == pytest.approx(conditional)
    json.dumps(asdict(m), allow_nan=False)


def test_random_histograms_keep_the_identities() -> None:
    make = torch.Generator().manual_seed(0)
    for depth in range(1, 9):
        for _ in range(20):
            histogram = torch.randint(0, 5, (depth + 1,), generator=make).tolist()
            m = SpecMetrics.of(histogram, 2 * depth + 1, valid=True)  # asserts them
            assert len(m.per_position_acceptance_rate) == len(m.conditional_acceptance_rate) == depth


def test_more_accepted_than_proposed_is_our_fault() -> None:
    with pytest.raises(AssertionError):
        SpecMetrics.of([0, 0, 1], nodes=2, valid=True)


@pytest.mark.parametrize("emitted", [4, 8])
def test_only_the_last_step_of_an_answer_may_be_cut(emitted: int) -> None:
    request = Request("a", list(range(emitted)), PARAMS, prompt_len=0, limit=99, accepted_per_step=[3, 1])
    told = Acceptance(CHAIN, valid=True)
    if emitted == 8:  # 1 + 2 steps + 4 drafts = 7
        with pytest.raises(AssertionError, match="last step"):
            told.of(request)
    else:
        assert told.of(request) is not None


@pytest.mark.parametrize(("shape", "proposed"), [(CHAIN, 3), (TREE, 6)], ids=["chain", "tree"])
def test_the_cycle_counts_as_foretold(shape: DraftShape, proposed: int) -> None:
    served = cycle(shape)
    result = served.generate([[0]], [{"max_new_tokens": 11}])[0]
    m = spec(result)  # the prompt's token, then 4 + 4 + 2 of 4: the cut step counts as it was verified
    assert m.accepted_per_step == [3, 3, 3]
    assert (m.num_spec_steps, m.num_draft_tokens, m.num_accepted_draft_tokens) == (3, 3 * proposed, 9)
    assert m.mean_acceptance_length == 4
    assert len(result.token_ids) == 11


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_a_wrong_draft_costs_acceptance(shape: DraftShape) -> None:
    served = cycle(shape, bad=(5, 9))
    m = spec(served.generate([[0]], [{"max_new_tokens": 20}])[0])
    assert m.accepted_per_step is not None
    if shape.top_k == 1:
        assert m.draft_acceptance_rate is not None
        assert m.draft_acceptance_rate < 1
    assert min(m.accepted_per_step) < shape.depth
    assert m.per_position_acceptance_rate[-1] is not None
    assert m.per_position_acceptance_rate[-1] < 1


PROMPTS = [[1, 2, 3], [5] * 17, [7, 0, 6, 5, 4], [3]]


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_numbers_do_not_depend_on_what_else_runs(shape: DraftShape) -> None:
    target, head = random_pair(8)

    def run(**around: Any) -> Engine:
        return engine(target, (head, LAYERS), shape, **around)

    lengths, seeded = (10, 6, 8, 1), []
    for place, length in enumerate(lengths):
        seeded.append({"max_new_tokens": length, "temperature": 0.7 if place == 2 else 0.0, "seed": 3})
    alone = [spec(run().generate([p], [s])[0]) for p, s in zip(PROMPTS, seeded, strict=True)]
    assert any(m.num_accepted_draft_tokens for m in alone)
    assert alone[3].num_spec_steps == 0
    for around in ({"batch": 2, "page": 1}, {"batch": 4, "chunk": 3}, {"tokens": 72, "max_seq_len": 40}):
        served = run(**around)
        assert [spec(r) for r in served.generate(PROMPTS, seeded)] == alone
        total = served.stats()
        assert total is not None
        assert total.num_spec_steps == sum(m.num_spec_steps for m in alone)
        assert total.acceptance_histogram == [
            sum(n) for n in zip(*(m.acceptance_histogram for m in alone), strict=True)
        ]
        assert total.accepted_per_step is None


def test_an_abort_leaves_out_the_step_in_flight() -> None:
    served = cycle(CHAIN)
    served.add([0], request_id="a", max_new_tokens=50)
    for _ in range(4):
        served.step()  # the prompt and two verifications are reported, one is on its way
    m = spec(served.abort("a"))
    assert m.accepted_per_step == [3, 3]
    while not served.idle:
        served.step()
    total = served.stats()
    assert total is not None
    assert total.num_spec_steps == 2


def test_plain_decoding_has_nothing_to_tell() -> None:
    served = engine(random_target(facts(16)))
    result = served.generate([[1]], [{"max_new_tokens": 3}])[0]
    assert result.metrics is not None
    assert result.metrics.spec is None
    assert served.stats() is None
    assert result.metrics.json()["spec"] is None


def test_forced_acceptance_is_marked() -> None:
    forced = SpecConfig(max_draft_len=3, synthetic_acceptance=2.0)
    served = cycle(CHAIN, spec=forced)
    m = spec(served.generate([[0]], [{"max_new_tokens": 9}])[0])
    assert m.acceptance_valid is False
    assert m.mean_acceptance_length == 2
    total = served.stats()
    assert total is not None
    assert total.acceptance_valid is False


def test_events_tell_drafts_from_the_bonus() -> None:
    served = cycle(CHAIN)
    events = [(e.token_ids, e.accepted) for e in served.stream([[0]], [{"max_new_tokens": 7}])]
    assert events == [([1], None), ([2, 3, 4, 5], 3), ([6, 7], 3)]
    plain = engine(random_target(facts(16)))
    assert {e.accepted for e in plain.stream([[0]], [{"max_new_tokens": 3}])} == {None}


@pytest.mark.parametrize(
    ("accepted", "valid", "warned"),
    [
        pytest.param([0] * 300, True, 1, id="once"),
        pytest.param([0] * 199, True, 0, id="too-early-to-say"),
        pytest.param([0] * 190 + [1] * 10, True, 0, id="just-enough"),
        pytest.param([0] * 191 + [1] * 9, True, 1, id="just-too-little"),
        pytest.param([0] * 300, False, 0, id="forced"),
    ],
)
def test_hardly_any_acceptance_is_a_warning(
    accepted: list[int], valid: bool, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    told = Acceptance(CHAIN, valid)
    with caplog.at_level(logging.WARNING):
        for n in accepted:
            told.count(n)
    assert len(caplog.records) == warned
    for cause in ("layer_ids_convention", "d2t", "chat template", "rope_theta") if warned else ():
        assert cause in caplog.text
