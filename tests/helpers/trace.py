"""Runs an engine and keeps what its results do not tell: what each step accepted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from eagle3.engine.engine import Engine
from eagle3.engine.request import Request
from eagle3.engine.scheduler import Emission, Plan, Scheduler
from eagle3.spec.slots import TreeSlots


@dataclass
class Trace:
    """What became of one request."""

    tokens: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)  # drafts, one entry a step
    preemptions: int = 0
    reason: str | None = None


def watch(engine: Engine) -> dict[str, Trace]:
    """Traces by request id, that grow while the engine runs."""
    traces: dict[str, Trace] = {}
    commit: Callable[..., list[Emission]] = engine.scheduler.commit

    def watched(*step: Any) -> list[Emission]:
        emissions = commit(*step)
        for e in emissions:
            trace = traces.setdefault(e.request.id, Trace())
            trace.tokens += e.tokens
            trace.preemptions, trace.reason = e.request.preemptions, e.request.finish_reason
            if e.accepted is not None:
                trace.accepted.append(e.accepted)
        return emissions

    engine.scheduler.commit = watched  # type: ignore[method-assign]
    return traces


def serve(
    engine: Engine, prompts: Sequence[Sequence[int]], samplings: Sequence[Mapping[str, Any]] | None = None
) -> list[Trace]:
    """All prompts together; nothing may leak."""
    traces = watch(engine)
    results = engine.generate(prompts, samplings)
    found = [traces[r.request_id] for r in results]
    assert [t.tokens for t in found] == [r.token_ids for r in results]
    assert_at_rest(engine)
    return found


def assert_at_rest(engine: Engine) -> None:
    """An idle engine owns nothing: no page, no slot, no promise, and its slots come back to rest."""
    scheduler, worker = engine.scheduler, engine.runner.worker
    slots, rest = worker.slots, TreeSlots(worker.slots.dummy, worker.shape, torch.device("cpu"))
    assert engine.idle
    assert not scheduler.running
    assert not scheduler.waiting
    assert [p.free for p in scheduler.pools] == [p.total for p in scheduler.pools]
    assert all(sorted(p._free) == list(range(1, p.total + 1)) for p in scheduler.pools)
    assert sorted(scheduler._slots) == list(range(slots.dummy))
    slots.restore(torch.tensor(scheduler._restore, dtype=torch.int64))
    assert all(torch.equal(now, was) for now, was in zip(slots.tree.tensors(), rest.tree.tensors(), strict=True))
    assert not slots.has_tree.any()
    assert not slots.length.any()


def preempt_often(scheduler: Scheduler, every: int) -> None:
    """Send the last request back, twice at most, after so many tokens each time: as if pages had run out."""
    generations = scheduler._generations

    def crowded() -> tuple[list[Request], bool]:
        last = scheduler.running[-1] if scheduler.running else None
        force = last is not None and not last.in_prompt and last.preemptions < 2
        force = force and last.emitted >= every * (last.preemptions + 1)
        if force:
            scheduler._preempt(last)
        chosen, starved = generations()
        return chosen, starved or force

    scheduler._generations = crowded  # type: ignore[method-assign]


def plans(engine: Engine) -> list[Plan]:
    """The plans that an engine will run, in order."""
    seen: list[Plan] = []
    schedule = engine.scheduler.schedule

    def watched() -> Plan:
        seen.append(schedule())
        return seen[-1]

    engine.scheduler.schedule = watched  # type: ignore[method-assign]
    return seen
