"""Runs what requests will run before anyone waits for it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch

from eagle3.engine.engine import Engine
from eagle3.engine.graphs import FILTERED, GREEDY, SAMPLED, GraphRunner
from eagle3.engine.prompts import most_rows
from eagle3.engine.request import ENDLESS
from eagle3.engine.runner import on
from eagle3.engine.scheduler import Limits
from eagle3.engine.tuning import tune_step
from eagle3.errors import CapacityError

KINDS = {"greedy": GREEDY, "sampled": SAMPLED, "filtered": FILTERED}
ASKED: dict[str, dict[str, float | None]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "top_k": None, "top_p": 1.0, "min_p": 0.0},
    "filtered": {"temperature": 1.0, "top_p": 0.9},
}
NEW = 2  # tokens of a warm-up's answer at most: the prompt's own and a step's
ANSWER = 16  # tokens of an answer that is timed, at most
LATER = 5  # requests that the first one is held against


@dataclass(frozen=True)
class Warmed:
    """One graph: for how many requests, what it cost, and how long a replay takes."""

    requests: int
    draw: str  # greedy | sampled | filtered
    compile_s: float
    capture_s: float
    memory_bytes: int | None  # None: no graph, it runs eagerly
    replay_ms: float | None


@dataclass(frozen=True)
class WarmedPass:
    """One graph of prompt passes: up to how many rows and requests, and what it cost. The draw is any."""

    rows: int
    requests: int
    ending: bool  # some prompt ends, and a tree is grown
    compile_s: float
    capture_s: float
    memory_bytes: int
    replay_ms: float  # as full as can be, without earlier chunks


@dataclass(frozen=True)
class WarmedPrompts:
    """Prompts served together, in passes that graphs do not cover, but for the first."""

    requests: int
    rows: int  # prompt tokens in all
    draw: str
    seconds: float


@dataclass(frozen=True)
class FirstRequest:
    """The first request after warm-up against the median of those after it. Times in milliseconds."""

    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    total_ms: float
    later_ttft_ms: float
    later_total_ms: float

    @property
    def ratio(self) -> float:
        """How much longer the first one took, in all."""
        return self.total_ms / self.later_total_ms


@dataclass(frozen=True)
class Warmth:
    """All that was warmed."""

    graphs: list[Warmed]
    passes: list[WarmedPass]
    prompts: list[WarmedPrompts]
    eager: list[str]  # what still runs without a graph


def warm(engine: Engine, tell: Callable[[str], None] = lambda _: None) -> Warmth:
    """Tune, capture every size of pass and kind of draw, then serve prompts of every kind of shape that is left."""
    with on(engine.runner.preparer.device):
        return _warm(engine, tell)


def _warm(engine: Engine, tell: Callable[[str], None]) -> Warmth:
    tune(engine, tell)
    runner, limits = engine.runner, engine.scheduler.limits
    passes = list(_passes(runner, tell)) if isinstance(runner, GraphRunner) else []
    graphs = list(_graphs(runner, tell)) if isinstance(runner, GraphRunner) else []
    prompts = []
    shapes = prompt_shapes(limits, room(engine))
    covered = max((made.rows for made in passes), default=0)
    for lengths, draw in shapes[:1] + [s for s in shapes[1:] if min(sum(s[0]), limits.max_num_tokens) > covered]:
        tell(f"prompts, {len(lengths)} requests, {sum(lengths)} tokens, {draw}")
        # a captured step needs no further run
        seconds = _serve(engine, lengths, draw, new=1 if graphs else NEW)
        prompts.append(WarmedPrompts(len(lengths), sum(lengths), draw, seconds))
    if not graphs:
        graphs = [Warmed(1, "greedy", prompts[0].seconds, 0.0, None, None)]
    return Warmth(graphs, passes, prompts, eager(engine))


def eager(engine: Engine) -> list[str]:
    """What runs without a graph. No batch is larger than the largest graph's."""
    runner = engine.runner
    if not isinstance(runner, GraphRunner) or not runner.capture:
        return ["prompt passes", "all steps"]
    if runner.prompts is None:
        return ["prompt passes"]
    largest = runner.prompts.rows[-1]
    covered = largest >= most_rows(engine.scheduler.limits)
    return [] if covered else [f"prompt passes of more than {largest} tokens"]


def tune(engine: Engine, tell: Callable[[str], None] = lambda _: None) -> int:
    """Measure the products of the steps that will be captured, where no file knows them; how many were new."""
    runner = engine.runner
    if not isinstance(runner, GraphRunner) or not runner.capture:
        return 0
    with on(runner.preparer.device):
        return tune_step(runner.worker, runner.buckets, tell)


def _graphs(runner: GraphRunner, tell: Callable[[str], None]) -> Iterable[Warmed]:
    """The largest first: what it leaves of their common memory is enough for all others."""
    if not runner.capture:
        return
    for name, kind in KINDS.items():
        for bucket in reversed(runner.buckets):
            tell(f"{name}, {bucket} requests")
            made = runner.captured(bucket, kind)
            yield Warmed(bucket, name, made.compile_s, made.capture_s, made.bytes, replay_ms(made.graph))


def _passes(runner: GraphRunner, tell: Callable[[str], None]) -> Iterable[WarmedPass]:
    """Before the generations, which need less."""
    if runner.prompts is None or not runner.capture:
        return
    for size in runner.prompts.sizes():
        tell(f"prompt passes, {size.rows} rows, {size.requests} requests")
        made = runner.captured_prompts(size)
        cost = made.compile_s, made.capture_s, made.bytes
        yield WarmedPass(size.rows, size.requests, size.ending, *cost, replay_ms(made.graph))


def prompt_shapes(limits: Limits, most: int) -> list[tuple[tuple[int, ...], str]]:
    """Lengths of prompts served together, `most` tokens at most each, and how they draw.

    A kernel is compiled anew for a count of 1, for multiples of 16 and for other counts, and by size for a few tiles:
    one request and several of each, a pass as full as can be, and a prompt of more than one chunk.
    """
    longest = min(limits.max_num_tokens, limits.prompt_chunk, most)
    full = min(limits.max_batch_size, -(-limits.max_num_tokens // longest))
    shapes: list[tuple[int, ...]] = [(1,), (16,), (17,), (64,), (129,), (longest,)]
    shapes += [(1, 1), (7, 9), (8, 9), (100, 29), (2,) * 16, (longest,) * full, (longest + 17,)]
    fitting = [s for s in dict.fromkeys(shapes) if max(s) <= most and len(s) <= limits.max_batch_size]
    drawn = [s for s in fitting if s in ((17,), (8, 9), (2,) * 16)] or fitting[:1]
    return [(s, "greedy") for s in fitting] + [(s, draw) for s in drawn for draw in ("sampled", "filtered")]


def room(engine: Engine) -> int:
    """The longest prompt that any request can have here, with a warm-up's answer."""
    shape, pools = engine.scheduler.shape, engine.scheduler.pools
    held = min(pool.total * pool.page for pool in pools) - shape.entries(0)
    most = min(held, engine.scheduler.limits.max_seq_len) - NEW
    if most < 1:
        raise CapacityError(f"no request of {1 + NEW} tokens fits: raise runtime.max_seq_len or kv.max_tokens")
    return most


def _serve(engine: Engine, lengths: Iterable[int], draw: str, new: int) -> float:
    """The seconds that it took."""
    started = time.perf_counter()
    prompts = [[0] * n for n in lengths]
    asked: dict[str, object] = {"max_new_tokens": new, **ENDLESS, **ASKED[draw]}
    engine.generate(prompts, [asked] * len(prompts))
    return time.perf_counter() - started


def first_request(engine: Engine) -> FirstRequest:
    """Time a request like those that the configuration measures (bench), then as many again as LATER."""
    bench = engine.config.bench
    answer = min(bench.output_len, ANSWER, max(1, room(engine) // 2))
    length = min(bench.prompt_len, room(engine) + NEW - answer)
    make = torch.Generator().manual_seed(0)
    seen = []
    for _ in range(1 + LATER):
        prompt = torch.randint(engine.vocab, (length,), generator=make).tolist()
        asked = {"max_new_tokens": answer, **ENDLESS}
        metrics = engine.generate([prompt], [asked])[0].metrics
        assert metrics is not None
        assert metrics.ttft_ms is not None
        assert metrics.e2el_ms is not None
        seen.append((metrics.ttft_ms, metrics.e2el_ms))
    first, later = seen[0], seen[1:]
    return FirstRequest(length, answer, *first, median(t for t, _ in later), median(t for _, t in later))


def replay_ms(graph: torch.cuda.CUDAGraph, times: int = 5) -> float:
    """The median time of a replay, on the device's own clock."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return median(float(a.elapsed_time(b)) for a, b in pairwise(marks))
