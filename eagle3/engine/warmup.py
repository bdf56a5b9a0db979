"""Runs what generations will run before anyone waits for it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch

from eagle3.engine.engine import Engine
from eagle3.engine.graphs import FILTERED, GREEDY, SAMPLED, GraphRunner

KINDS = {"greedy": GREEDY, "sampled": SAMPLED, "filtered": FILTERED}


@dataclass(frozen=True)
class Warmed:
    """One graph: for how many requests, what it cost, and how long a replay takes."""

    requests: int
    draw: str  # greedy | sampled | filtered
    compile_s: float
    capture_s: float
    memory_bytes: int | None  # None: no graph, it runs eagerly
    replay_ms: float | None


def warm(engine: Engine, tell: Callable[[str], None] = lambda _: None) -> list[Warmed]:
    """Serve one short request through the real step, then capture every bucket and kind of draw."""
    started = time.perf_counter()
    engine.generate(
        [[0] * min(8, engine.scheduler.limits.max_seq_len - 2)], [{"max_new_tokens": 2, "ignore_eos": True}]
    )
    runner = engine.runner
    if not isinstance(runner, GraphRunner) or not runner.capture:
        seconds = time.perf_counter() - started
        return [Warmed(1, "greedy", seconds, 0.0, None, None)]
    rows = []
    for name, kind in KINDS.items():
        for bucket in runner.buckets:
            tell(f"{name}, {bucket} requests")
            made = runner.captured(bucket, kind)
            rows.append(Warmed(bucket, name, made.compile_s, made.capture_s, made.bytes, replay_ms(made.graph)))
    return rows


def replay_ms(graph: torch.cuda.CUDAGraph, times: int = 5) -> float:
    """The median time of a replay, on the device's own clock."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return median(float(a.elapsed_time(b)) for a, b in pairwise(marks))
