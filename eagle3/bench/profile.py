"""Where the time of a generation step goes: in its parts, and between two steps."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from eagle3.bench.run import one_pass
from eagle3.bench.sections import Profile, Section, Stamp, around, elapsed_ms, mark, stamp
from eagle3.engine.engine import Engine
from eagle3.engine.graphs import GraphRunner
from eagle3.engine.request import ENDLESS
from eagle3.errors import RunError

STEPS = 20  # at least so many are looked at, in STEPS passes at most
TRACED = 8


def profile(engine: Engine, prompts: Sequence[Sequence[int]], output_len: int) -> Profile | None:
    """Split the step of an idle engine over the prompts; None where answers are too short for a step of all."""
    gap = host_gap(engine, prompts, output_len)
    runner, device = engine.runner, engine.runner.preparer.device
    steps: list[dict[Section, float]] = []
    with ExitStack() as undo:
        marks = mark(runner.worker, device, undo)
        if isinstance(runner, GraphRunner):  # graphs that hold the marks
            engine.runner = runner.alone(len(prompts))
            undo.callback(setattr, engine, "runner", runner)

        def read(requests: Sequence[object]) -> None:
            wait(device)
            if len(requests) == len(prompts):
                steps.append(marks.sections())

        around(engine.runner, "generations", lambda _: None, read, undo)
        for _ in range(STEPS):
            one_pass(engine, prompts, output_len)
            if len(steps) >= STEPS:
                break
    return Profile.of(steps, gap) if steps else None


def host_gap(engine: Engine, prompts: Sequence[Sequence[int]], output_len: int) -> float | None:
    """Median milliseconds for which the device waits between two steps of the same requests; None: no two steps."""
    runner, device = engine.runner, engine.runner.preparer.device
    spans: list[tuple[Stamp, Stamp]] = []
    gaps: list[float] = []
    with ExitStack() as undo:
        started: list[Stamp] = []
        graphs = isinstance(runner, GraphRunner) and runner.capture
        around(
            runner if graphs else runner.worker,
            "replay" if graphs else "generations",
            lambda _: started.append(stamp(device)),
            lambda _: spans.append((started.pop(), stamp(device))),
            undo,
        )
        for _ in range(STEPS):
            spans.clear()
            one_pass(engine, prompts, output_len)
            wait(device)
            gaps += [elapsed_ms(end, start) for (_, end), (start, _) in pairwise(spans)]
            if len(gaps) >= STEPS:
                break
    return median(gaps) if gaps else None


def trace(engine: Engine, prompts: Sequence[Sequence[int]], output_len: int, file: Path) -> int:
    """Write a chrome trace of up to TRACED steps of an idle engine, from where all prompts generate; how many."""
    for i, prompt in enumerate(prompts):
        engine.add(prompt, max_new_tokens=output_len, seed=i, **ENDLESS)
    begun: set[str] = set()
    while len(begun) < len(prompts) and not engine.idle:
        begun |= {event.request_id for event in engine.step()}
    activities = [torch.profiler.ProfilerActivity.CPU]
    if engine.runner.preparer.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    steps = 0
    with torch.profiler.profile(activities=activities) as traced:
        while steps < TRACED and not engine.idle:
            with torch.profiler.record_function("step"):
                engine.step()
            steps += 1
        wait(engine.runner.preparer.device)
    engine.abort_all()
    traced.export_chrome_trace(str(file))
    if not file.is_file() or not file.stat().st_size:  # the profiler itself does not say so
        raise RunError(f"{file}: the trace could not be written")
    return steps


def wait(device: torch.device) -> None:
    """Until a GPU has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
