"""Measures one engine on a workload: the time of steps, of requests, and what was accepted."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from eagle3.bench.floor import step_floor
from eagle3.bench.sections import Profile
from eagle3.bench.workload import Workload
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine, Result
from eagle3.engine.request import ENDLESS
from eagle3.engine.stats import SpecMetrics


@dataclass(frozen=True)
class Pass:
    """One pass over a batch. Times in milliseconds."""

    step_ms: float  # median over steps in which all requests generate and nothing else runs
    steps: int  # how many those were
    output_tokens: int
    seconds: float  # from the first request's arrival to the last token
    ttft_ms: list[float]
    tpot_ms: list[float]
    histogram: list[int]  # verifications by accepted drafts

    @property
    def output_throughput(self) -> float:
        """Output tokens a second, prompts included in the time."""
        return self.output_tokens / self.seconds


@dataclass(frozen=True)
class Cell:
    """One arm at one batch size: its scored passes."""

    arm: str  # plain | spec
    batch: int
    shape: DraftShape
    acceptance_valid: bool
    floor_ms: float | None = None  # of a step, halfway through the answers; None: not known for this device
    passes: list[Pass] = field(default_factory=list)
    profile: Profile | None = None

    def spread(self, value: Callable[[Pass], float]) -> tuple[float, float, float]:
        """min, median and max over the passes."""
        values = [value(p) for p in self.passes]
        return min(values), median(values), max(values)

    @property
    def acceptance(self) -> SpecMetrics | None:
        """All passes' verifications together; None for plain decoding."""
        if self.shape.depth == 0:
            return None
        histogram = [sum(counts) for counts in zip(*(p.histogram for p in self.passes), strict=True)]
        return SpecMetrics.of(histogram, self.shape.nodes, self.acceptance_valid)


class CutShort(KeyboardInterrupt):
    """Ctrl-C, and the cells of what was measured before it."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        super().__init__()
        self.cells = [cell for cell in cells if cell.passes]


def one_pass(engine: Engine, prompts: Sequence[Sequence[int]], output_len: int) -> Pass:
    """Serve the prompts together, `output_len` tokens each, or at most where bench.ignore_eos is false."""
    ends = ENDLESS if engine.config.bench.ignore_eos else {}
    shape = engine.scheduler.shape
    histogram = [0] * (shape.depth + 1)
    done: list[Result] = []
    started = time.perf_counter()
    for i, prompt in enumerate(prompts):
        engine.add(prompt, max_new_tokens=output_len, seed=i, **ends)
    steady: list[float] = []
    begun: set[str] = set()
    before, all_generated = started, False
    while not engine.idle:
        events = engine.step()
        now = time.perf_counter()
        # a step's time is from its results to the next one's, while every request generates in both
        generated = len(events) == len(prompts) and all(e.request_id in begun for e in events)
        begun |= {e.request_id for e in events}
        if generated and all_generated:
            steady.append(1000 * (now - before))
        before, all_generated = now, generated
        for event in events:
            if event.accepted is not None:
                histogram[event.accepted] += 1
            if event.result is not None:
                done.append(event.result)
    times = [r.metrics for r in done if r.metrics is not None]
    return Pass(
        step_ms=median(steady) if steady else 0.0,
        steps=len(steady),
        output_tokens=sum(len(r.token_ids) for r in done),
        seconds=before - started,
        ttft_ms=[m.ttft_ms for m in times if m.ttft_ms is not None],
        tpot_ms=[m.tpot_ms for m in times if m.tpot_ms is not None],
        histogram=histogram,
    )


def measure(
    arms: dict[str, Engine],
    work: Workload,
    batch: int,
    output_len: int,
    repeats: int,
    tell: Callable[[str], None],
) -> list[Cell]:
    """All arms at one batch size, in turns: one unscored pass each, then `repeats` scored ones on the same prompts.

    Raises `CutShort` on Ctrl-C.
    """
    context = round(mean(map(len, work.batch(batch, 0))) + output_len / 2)
    cells = [
        Cell(
            name,
            batch,
            engine.scheduler.shape,
            work.real and engine.config.spec.synthetic_acceptance is None,
            step_floor(engine.runner.worker, batch, context),
        )
        for name, engine in arms.items()
    ]
    try:
        for turn in range(-1, repeats):
            for cell in cells:
                tell(f"batch {batch}, {cell.arm}, " + ("warm-up" if turn < 0 else f"pass {turn + 1} of {repeats}"))
                done = one_pass(arms[cell.arm], work.batch(batch, max(turn, 0)), output_len)
                if turn >= 0:
                    cell.passes.append(done)
    except KeyboardInterrupt as stop:
        raise CutShort(cells) from stop
    return cells
