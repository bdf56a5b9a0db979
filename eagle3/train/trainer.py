"""The loop: passes, updates, what is told on the way, checkpoints."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError

from eagle3.config.schema import TrainConfig
from eagle3.errors import RunError
from eagle3.train.evaluate import Score, Sums, evaluate
from eagle3.train.export import export
from eagle3.train.log import MEMORY, Log, finished
from eagle3.train.memory import Memory, Paper, Work, on_paper
from eagle3.train.new_head import NewHead
from eagle3.train.optimiser import Optimiser, rate
from eagle3.train.packing import Schedule, batch_of
from eagle3.train.ranks import TERMINATED, Ranks
from eagle3.train.resume import Checkpoints
from eagle3.train.samples import Sample
from eagle3.train.teacher import Teacher
from eagle3.train.ttt import Rule, unroll

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Figures:
    """What is told of the updates since the last time."""

    update: int
    updates: int
    loss: list[float]  # [S]
    accuracy: list[float]  # [S]
    rate: float  # of learning
    tokens: int  # learnt from so far, by all ranks
    tokens_per_second: float


Tell = Callable[[Figures], None]
Scored = Callable[[int, int, Score], None]  # at this update, of so many


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    updates: int
    tokens: int
    epochs: float
    seconds: float
    score: Score
    memory: Memory
    head: Path
    already: bool  # it had ended before: nothing was learnt or written


class Trainer:
    """Everything that a run is made of; `run` goes on from the last checkpoint."""

    def __init__(
        self,
        new: NewHead,
        teacher: Teacher,
        samples: Sequence[Sample],
        held: Sequence[Sample],
        train: TrainConfig,
        ranks: Ranks,
        out: Path,
    ) -> None:
        self.new, self.head, self.teacher = new, new.head, teacher
        self.samples, self.held, self.train, self.ranks, self.out = samples, held, train, ranks, out
        self.rule = Rule(train.steps, train.step_decay, train.loss, train.mean)
        self.optimiser = Optimiser(self.head.parameters(), train)
        lengths = [len(sample.ids) for sample in samples]
        self.schedule = Schedule(
            lengths, train.seq_len, seed=train.seed, epochs=train.epochs, per_update=self.rows_an_update
        )
        self.updates = min(self.schedule.updates, train.max_steps or self.schedule.updates)
        self.checkpoints = Checkpoints(out, train.keep)
        self.update = 0  # that comes next
        self.tokens = 0
        self._sums = Sums(train.steps, ranks.device)
        self._broken = torch.full((), -1, dtype=torch.int64, device=ranks.device)  # the first update that broke

    @property
    def paper(self) -> Paper:
        """What a pass takes of this rank's device, as the teacher now is."""
        train = self.train
        mean = sum(self.schedule.lengths) / len(self.schedule.lengths)
        documents = train.batch_size * (1 + math.ceil(train.seq_len / mean))
        work = Work(train.batch_size, train.seq_len, train.steps, documents, self.ranks.size)
        return on_paper(self.teacher, self.head, work)

    @property
    def rows_an_update(self) -> int:
        """Rows of all passes of all ranks."""
        return self.train.batch_size * self.train.accumulate * self.ranks.size

    def run(self, tell: Tell, scored: Scored = lambda *_: None) -> Summary:
        """All updates that are left. On Ctrl-C a checkpoint is written before KeyboardInterrupt goes on.

        So it is on SIGTERM where a rank is alone, before SystemExit(143). A run that had ended writes nothing.
        Raises RunError for a loss that is not finite, a disk that is full, a rank that is gone.
        """
        self._resume()
        if self._ended():
            return self._again()
        memory = Memory(self.paper, self.ranks.device)
        log = Log(self.out, self.update) if self.ranks.first else None
        started = time.perf_counter()
        with interrupts(terminated=self.ranks.size == 1) as interrupted:
            since, seen = started, self.tokens
            while self.update < self.updates:
                lr = rate(self.train, self.update, self.updates)
                self._update(lr)
                done = self.update = self.update + 1
                stop = self.ranks.any(interrupted() is not None)
                last = stop or done == self.updates
                if last or done % self.train.log_every == 0:
                    self._tell(tell, log, lr, (self.tokens - seen) / (time.perf_counter() - since))
                    since, seen = time.perf_counter(), self.tokens
                if last or done % self.train.save_every == 0:
                    self._save()
                if stop:
                    raise SystemExit(TERMINATED) if interrupted() is signal.SIGTERM else KeyboardInterrupt
                if done % self.train.eval_every == 0 and done < self.updates:
                    self._evaluate(log, scored)
                    since, seen = time.perf_counter(), self.tokens
        score = self._evaluate(log, scored)
        self._save()
        if log is not None:
            log.write({"kind": MEMORY, "update": self.update, **memory.told()})
        return self._summary(started, score, memory, already=False)

    def _ended(self) -> bool:
        """Whether the run had ended before it was started again."""
        done = self.update >= self.updates
        return done and self.ranks.any(self.ranks.first and finished(self.out, self.update))

    def _again(self) -> Summary:
        """The end of a run that had ended, told once more."""
        if self.ranks.first:
            logger.info("this run had ended at update %d already: nothing is learnt or written", self.update)
        started, memory = time.perf_counter(), Memory(self.paper, self.ranks.device)
        return self._summary(started, self._evaluate(None, lambda *_: None), memory, already=True)

    def _summary(self, started: float, score: Score, memory: Memory, *, already: bool) -> Summary:
        epochs, seconds = self.schedule.epochs_at(self.update), time.perf_counter() - started
        return Summary(self.update, self.tokens, epochs, seconds, score, memory, self.out, already)

    def _update(self, lr: float) -> None:
        train, ranks = self.train, self.ranks
        rows = self.schedule.of_update(self.update)
        self.tokens += sum(len(self.samples[i].ids) for row in rows for i in row)
        mine = rows[ranks.rank :: ranks.size]
        for at in range(0, len(mine), train.batch_size):
            inside = [[self.samples[i] for i in row] for row in mine[at : at + train.batch_size]]
            batch = batch_of(inside, train.seq_len, ranks.device)
            outcome = unroll(self.head, batch, self.teacher(batch), self.rule)
            (outcome.total(self.rule.decay) / train.accumulate).backward()  # type: ignore[no-untyped-call]
            self.optimiser.collect()
            self._sums.add(outcome)
        ranks.add(self.optimiser.gradient(), mean=True)
        norm = self.optimiser.update(lr)
        fresh = (self._broken < 0) & ~norm.isfinite()
        self._broken = torch.where(fresh, self.update, self._broken)  # read when something is told: no wait here

    def _check(self) -> None:
        """Before anything is told or kept."""
        if (at := int(self._broken)) >= 0:
            raise RunError(
                f"update {at + 1}: the gradient is not finite; lower train.lr ({self.train.lr:g});"
                f" {self.checkpoints.told}"
            )

    def _tell(self, tell: Tell, log: Log | None, lr: float, speed: float) -> None:
        self._check()
        loss, accuracy = self._sums.read(self.ranks)
        figures = Figures(self.update, self.updates, loss, accuracy, lr, self.tokens, speed)
        tell(figures)
        if log is not None:
            log.write({"kind": "train", **asdict(figures)})

    def _evaluate(self, log: Log | None, scored: Scored) -> Score:
        self._check()
        train = self.train
        score = evaluate(
            self.head, self.teacher, self.held, self.rule, self.ranks, length=train.seq_len, rows=train.batch_size
        )
        if log is not None:
            log.write({"kind": "eval", "update": self.update, "tokens": self.tokens, **asdict(score)})
        scored(self.update, self.updates, score)
        return score

    def _save(self) -> None:
        """A checkpoint, and the head into the run's folder."""
        self._check()
        if not self.ranks.first:
            return
        state = {"optimiser": self.optimiser.state(), "tokens": self.tokens}

        def head(folder: Path) -> None:
            export(self.head, self.new.layers, folder)

        self.checkpoints.save(self.update, state, head)
        try:
            head(self.out)
        except (OSError, SafetensorError) as fault:
            raise RunError(f"{self.out}: the head cannot be written: {fault}; {self.checkpoints.told}") from fault

    def _resume(self) -> None:
        if (found := self.checkpoints.load()) is None:
            return
        state: dict[str, Any]
        self.update, state = found
        self.optimiser.load(state["optimiser"])
        self.tokens = state["tokens"]
        if self.ranks.first:
            logger.info("goes on from update %d of %d", self.update, self.updates)


@contextmanager
def interrupts(*, terminated: bool) -> Iterator[Callable[[], signal.Signals | None]]:
    """Keeps Ctrl-C, and SIGTERM if `terminated`, until asked for the last one, as an update must not be cut.

    A second one of the same kind cuts it nevertheless.
    """
    asked: list[signal.Signals] = []

    def last() -> signal.Signals | None:
        return asked[-1] if asked else None

    if threading.current_thread() is not threading.main_thread():
        yield last
        return
    kinds = (signal.SIGINT, signal.SIGTERM) if terminated else (signal.SIGINT,)
    before = {kind: signal.getsignal(kind) for kind in kinds}

    def once(number: int, _: FrameType | None) -> None:
        asked.append(signal.Signals(number))
        signal.signal(number, before[asked[-1]])

    for kind in kinds:
        signal.signal(kind, once)
    try:
        yield last
    finally:
        for kind in kinds:
            signal.signal(kind, before[kind])
