"""A step in parts: marks where they belong, times where they were spent, and no trace of either afterwards."""

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from eagle3.bench import sections
from eagle3.bench.profile import STEPS, TRACED, host_gap, profile, trace
from eagle3.bench.sections import Marks, Profile, Section, around, mark
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from eagle3.engine.graphs import GraphRunner
from eagle3.errors import RunError
from helpers.pairs import CPU, LAYERS, PLAIN, engine, facts, random_pair, random_target

CHAIN = DraftShape(depth=3, top_k=1, nodes=4)
TREE = DraftShape(depth=3, top_k=2, nodes=7)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]
BLOCK = ["target linear", "target attention", "target linear", "target other"] + ["target linear", "target other"] * 2


def drafting(shape: DraftShape) -> Engine:
    target, head = random_pair(8)
    return engine(target, (head, LAYERS), shape)


def order(served: Engine) -> list[str]:
    """The sections of one marked step, in order."""
    with ExitStack() as undo:
        marks = mark(served.runner.worker, CPU, undo)
        served.generate([PROMPTS[0]], [{"max_new_tokens": 2}])
        laps = [section for section, _ in marks._laps]
    assert laps.pop() is None
    return [str(section) for section in laps]


@pytest.mark.parametrize("shape", [CHAIN, TREE])
def test_marks_of_a_drafting_step(shape: DraftShape) -> None:
    rest = ["target linear", "verify", "move", "draft", "build", "write"]
    assert order(drafting(shape)) == ["read", "target other", *BLOCK * 8, *rest]


def test_marks_of_a_plain_step() -> None:
    plain = engine(random_target(facts(8, layers=2)))
    assert order(plain) == ["read", "target other", *BLOCK * 2, "target linear", "verify", "write"]


def test_time_is_summed_by_section(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 7.0])
    monkeypatch.setattr(sections, "stamp", lambda _: next(now))
    marks = Marks(CPU)
    marks.enter(Section.DRAFT)  # in no step
    marks.begin()
    for section in (Section.VERIFY, Section.READ, Section.READ):
        marks.enter(section)
    marks.end()
    assert marks.sections() == {"read": 5000.0, "verify": 2000.0}


def test_medians_over_steps() -> None:
    steps = [{Section.READ: 1.0, Section.DRAFT: 5.0}, {Section.READ: 3.0}, {Section.READ: 2.0, Section.DRAFT: 1.0}]
    assert Profile.of(steps, 0.5) == Profile(3, {Section.READ: 2.0, Section.DRAFT: 1.0}, 3.0, 0.5)


def test_a_slow_part_is_found() -> None:
    served = drafting(CHAIN)
    assert served.runner.worker.spec is not None
    head = served.runner.worker.spec.drafter.head  # type: ignore[attr-defined]
    with ExitStack() as undo:
        around(head, "forward", lambda *_: time.sleep(0.01), lambda *_: None, undo)
        found = profile(served, PROMPTS, 12)
    assert found is not None
    assert found.steps >= STEPS
    assert found.sections[Section.DRAFT] >= 30
    assert max(found.sections, key=found.sections.__getitem__) is Section.DRAFT
    assert found.total_ms == pytest.approx(sum(found.sections.values()), rel=0.5)


@pytest.mark.parametrize("shape", [PLAIN, CHAIN, TREE])
def test_nothing_is_left_behind(shape: DraftShape) -> None:
    served = engine(random_target(facts(8))) if shape is PLAIN else drafting(shape)
    asked = [{"max_new_tokens": 12}] * 2
    runner, worker = served.runner, served.runner.worker
    want = [r.token_ids for r in served.generate(PROMPTS, asked)]
    before = {id(o): dict(vars(o)) for o in (runner, worker, worker.slots, worker.spec or worker)}
    with ExitStack() as undo:
        mark(worker, CPU, undo)
        assert [r.token_ids for r in served.generate(PROMPTS, asked)] == want
        assert worker.target._forward_pre_hooks
    assert profile(served, PROMPTS, 12) is not None
    assert served.runner is runner
    assert {id(o): dict(vars(o)) for o in (runner, worker, worker.slots, worker.spec or worker)} == before
    modules = [m for m in worker.target.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not modules
    assert "logits" not in vars(worker.target)
    assert [r.token_ids for r in served.generate(PROMPTS, asked)] == want


def test_the_gap_is_the_hosts() -> None:
    served = drafting(CHAIN)
    quick = host_gap(served, PROMPTS, 12)
    with ExitStack() as undo:
        around(served.scheduler, "schedule", lambda *_: time.sleep(0.02), lambda *_: None, undo)
        slow = host_gap(served, PROMPTS, 12)
    assert quick is not None
    assert slow is not None
    assert slow > quick + 15
    assert host_gap(served, PROMPTS, 2) is None, "no two steps of one request"


def test_answers_of_one_token_have_no_step() -> None:
    assert profile(drafting(CHAIN), PROMPTS, 1) is None


@pytest.mark.parametrize(("count", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4)])
def test_graphs_of_their_own(count: int, bucket: int) -> None:
    served = drafting(CHAIN).runner
    runner = GraphRunner(served.worker, served.preparer, [1, 2, 4], 2, 40, capture=False)
    alone = runner.alone(count)
    assert (alone.buckets, alone.pools, alone.width, alone.capture) == ((bucket,), 2, 40, False)
    assert alone.worker is runner.worker, "which carries the marks"
    assert alone.graph_bytes == 0


def test_a_trace_that_is_not_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda *_: None)  # as it does in a full folder
    with pytest.raises(RunError, match="could not be written"):
        trace(drafting(CHAIN), PROMPTS, 60, tmp_path / "steps.json")


def test_trace(tmp_path: Path) -> None:
    served = drafting(CHAIN)
    steps = trace(served, PROMPTS, 60, tmp_path / "steps.json")
    assert steps == TRACED
    names = [event.get("name") for event in json.loads((tmp_path / "steps.json").read_text())["traceEvents"]]
    assert names.count("step") == TRACED
    assert served.idle
    assert torch.is_inference_mode_enabled() is False
