"""Minutes of mixed load in one process: do pages come back, does memory stay, do steps keep their time?"""

import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import torch

from eagle3.engine.engine import Engine, Result
from eagle3.engine.request import ENDLESS
from eagle3.engine.warmup import NEW, room

WINDOWS = 10
BACKLOG = 2  # requests that wait for a slot while the batch is full
ABORTED = 0.15  # share of the requests that are aborted midway
LONGEST = 0.05  # share of them whose prompt takes all that fits
DRIFT = 0.03  # of a step's time, either way
SLACK = {"reserved": 32 << 20, "allocated": 32 << 20, "resident": 256 << 20}  # bytes that may come and go
SAMPLINGS: tuple[dict[str, float], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.95},
    {"temperature": 1.2, "top_k": 50},
    {"temperature": 1.0, "min_p": 0.05},
)


@dataclass(frozen=True)
class Order:
    """A request to come."""

    prompt: list[int]
    new: int  # tokens of its answer
    sampling: dict[str, float]
    abort_after: int | None  # tokens of the answer, 0: while it waits or reads its prompt; None: it ends by itself


def orders(vocab: int, longest: int, answer: int) -> Iterator[Order]:
    """The same endless stream each time: prompts of 1 token to what fits in `longest` with an answer up to `answer`."""
    make = random.Random(0)
    while True:
        new = make.randint(1, min(answer, longest - 1))
        # as many of each magnitude, and some of all that fits
        length = round((longest - new) ** (1.0 if make.random() < LONGEST else make.random()))
        prompt = make.choices(range(vocab), k=length)
        left = make.choice((0, make.randrange(new))) if make.random() < ABORTED else None
        yield Order(prompt, new, make.choice(SAMPLINGS), left)


@dataclass(frozen=True)
class Window:
    """A stretch of full load, then a drain. Memory and pages are those of the drained engine."""

    seconds: float
    steps: int
    step_ms: float | None  # median over full steps; None: there was none
    full_steps: int  # those in which the same requests generate as in the step before, and fill the batch
    output_tokens: int
    finished: int
    aborted: int
    preempted: int  # times that a request gave way
    memory: dict[str, int]  # bytes, by a name of SLACK
    pages_free: list[int]  # of each pool
    stalled: bool  # requests were left that nothing came of

    @property
    def output_throughput(self) -> float:
        """Output tokens a second, those of aborted requests and the drain included."""
        return self.output_tokens / self.seconds


@dataclass(frozen=True)
class Soak:
    """All windows, and what an engine without requests has at the end. None: too short to tell."""

    windows: list[Window]
    pages_total: list[int]
    pages_free: list[int]
    slots_total: int
    slots_free: int
    stopped: bool = False  # Ctrl-C cut the last window: it may have cut a step, so nothing is judged by what it left

    @property
    def whole(self) -> list[Window]:
        """The windows that were not cut."""
        return self.windows[:-1] if self.stopped else self.windows

    @property
    def pages(self) -> bool | None:
        """Every page came back, after every window."""
        drained = [w.pages_free for w in self.whole] + ([] if self.stopped else [self.pages_free])
        stalled = any(w.stalled for w in self.whole)
        return all(free == self.pages_total for free in drained) and not stalled if drained else None

    @property
    def slots(self) -> bool | None:
        """Every slot came back."""
        return None if self.stopped else self.slots_free == self.slots_total

    @property
    def memory(self) -> bool | None:
        """The last window's memory is not above the second's; the first one still finds its size."""
        if len(self.whole) < 3:
            return None
        second, last = self.whole[1].memory, self.whole[-1].memory
        return all(last[name] <= second[name] + SLACK[name] for name in second)

    @property
    def ratio(self) -> float | None:
        """The last window's median step over the first one's that there is."""
        times = [w.step_ms for w in self.windows if w.step_ms is not None]
        last = self.windows[-1].step_ms
        return last / times[0] if last is not None and len(times) > 1 else None

    @property
    def drift(self) -> bool | None:
        """Steps kept their time. Told, not judged: others may use the machine."""
        return None if self.ratio is None else abs(self.ratio - 1) <= DRIFT

    @property
    def failed(self) -> list[str]:
        """What went wrong."""
        found = {"pages": self.pages, "slots": self.slots, "memory": self.memory}
        return [name for name, good in found.items() if good is False]


class Traffic:
    """Keeps an idle engine busy with orders, and counts what comes of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batch = engine.scheduler.limits.max_batch_size
        self.longest = room(engine) + NEW
        self.orders = orders(engine.vocab, self.longest, engine.config.bench.output_len)
        self.steps = self.tokens = self.finished = self.aborted = self.preempted = 0
        self.full_ms: list[float] = []
        self._live: dict[str, Order] = {}
        self._got: Counter[str] = Counter()
        self._names = count()
        self._last: tuple[float, frozenset[str]] = (0.0, frozenset())  # of the newest step, empty unless full
        self._silent = 0  # steps since anything came

    @property
    def stalled(self) -> bool:
        """More steps without a token than the longest prompt could take."""
        return self._silent > self.longest + 8

    def fill(self) -> None:
        """Add as many requests as have left."""
        while len(self._live) < self.batch + BACKLOG:
            order, name = next(self.orders), next(self._names)
            asked = {"max_new_tokens": order.new, "seed": name, **ENDLESS}
            self.engine.add(order.prompt, request_id=str(name), **asked, **order.sampling)
            self._live[str(name)] = order

    def step(self) -> None:
        """One step, then the aborts that are due."""
        events = self.engine.step()
        now = time.perf_counter()
        self.steps += 1
        ids = frozenset(e.request_id for e in events)
        # a full batch of requests that had tokens before: no slot is left for a prompt's pass
        full = ids if len(ids) == self.batch and all(self._got[name] for name in ids) else frozenset()
        before, last = self._last
        if full and full == last:
            self.full_ms.append(1000 * (now - before))
        self._last = now, full
        self._silent = 0 if events else self._silent + 1
        for event in events:
            self._got[event.request_id] += len(event.token_ids)
            if event.result is not None:
                self.left(event.result)
        for name, order in list(self._live.items()):
            if order.abort_after is not None and self._got[name] >= order.abort_after:
                self.left(self.engine.abort(name))

    def left(self, result: Result) -> None:
        """Count a request that has ended, by itself or not."""
        self._live.pop(result.request_id, None)  # unknown where Ctrl-C came while it was added
        self._got.pop(result.request_id, None)
        self.tokens += len(result.token_ids)
        self.preempted += result.metrics.num_preemptions if result.metrics else 0
        if result.finish_reason == "abort":
            self.aborted += 1
        else:
            self.finished += 1


def run_window(engine: Engine, seconds: float, tell: Callable[[], None]) -> tuple[Window, float, bool]:
    """Full load for so long, at least one step; then until the engine is idle.

    Also the seconds of the drain, and whether Ctrl-C cut the window.
    """
    traffic, started, drain, cut = Traffic(engine), time.perf_counter(), None, False
    try:
        while not traffic.stalled and (traffic.steps == 0 or time.perf_counter() - started < seconds):
            traffic.fill()
            traffic.step()
            tell()
        drain = time.perf_counter()
        while not traffic.stalled and not engine.idle:
            traffic.step()
            tell()
    except KeyboardInterrupt:
        cut = True
    stalled = not engine.idle and not cut
    for result in engine.abort_all():
        traffic.left(result)
    ended = time.perf_counter()
    window = Window(
        seconds=ended - started,
        steps=traffic.steps,
        step_ms=median(traffic.full_ms) if traffic.full_ms else None,
        full_steps=len(traffic.full_ms),
        output_tokens=traffic.tokens,
        finished=traffic.finished,
        aborted=traffic.aborted,
        preempted=traffic.preempted,
        memory=memory(engine.runner.preparer.device),
        pages_free=[pool.free for pool in engine.scheduler.pools],
        stalled=stalled,
    )
    return window, 0.0 if drain is None else ended - drain, cut


def soak(engine: Engine, seconds: float, tell: Callable[[float], None]) -> Soak:
    """Serve the same mixed load again and again, `seconds` in all, a window of it at a time.

    `tell` hears the seconds gone. Wants an idle engine, on a GPU a warm one: graphs that are captured late take memory.
    Ends early where requests stall, and by Ctrl-C, which goes on only where there was no step yet.
    """
    started, each, drain, cut = time.perf_counter(), seconds / WINDOWS, 0.0, False
    windows: list[Window] = []

    def gone() -> float:
        return time.perf_counter() - started

    while not windows or (seconds - gone() >= each / 2 and not windows[-1].stalled and not cut):
        window, drain, cut = run_window(engine, max(each - drain, each / 2), lambda: tell(gone()))
        if cut and not windows and window.steps == 0:
            raise KeyboardInterrupt
        windows.append(window)
    scheduler = engine.scheduler
    return Soak(
        windows,
        pages_total=[pool.total for pool in scheduler.pools],
        pages_free=[pool.free for pool in scheduler.pools],
        slots_total=scheduler.limits.max_batch_size,
        slots_free=scheduler.free_slots,
        stopped=cut,
    )


def memory(device: torch.device) -> dict[str, int]:
    """Bytes that the process holds of a GPU, or of the machine's memory."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return {"reserved": torch.cuda.memory_reserved(device), "allocated": torch.cuda.memory_allocated(device)}
    sizes = Path("/proc/self/statm")
    if sizes.exists():
        return {"resident": int(sizes.read_text().split()[1]) * resource.getpagesize()}
    return {"resident": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}  # the most there ever was


def total_throughput(windows: Sequence[Window]) -> float:
    """Output tokens a second, all windows together."""
    return sum(w.output_tokens for w in windows) / sum(w.seconds for w in windows)
