"""`eagle3 train`: make a head for a target."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import typer

from eagle3.cli.data import make, table, telling
from eagle3.cli.options import Json, takes_overrides
from eagle3.cli.report import loading, print_heading, print_problems
from eagle3.config.flags import HydraFlags
from eagle3.config.terminal import bar, console
from eagle3.errors import Problem

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from eagle3.config.load import Composed
    from eagle3.config.results import Outcome
    from eagle3.train.evaluate import Score
    from eagle3.train.trainer import Figures


log = logging.getLogger(__name__)


@takes_overrides
def train(flags: HydraFlags, overrides: list[str], json_: Json = False) -> int:
    """Train an EAGLE-3 head for the target of a configuration, on answers that the target wrote (`eagle3 data`).

    The head learns by training-time test: train.steps times it reads its own
    feedback as it will when it drafts, and is held against the target's
    distribution. train.out gets the head (config.json, model.safetensors: a
    draft.checkpoint as it is), checkpoints, and log.jsonl with losses and
    accuracies by step and the simulated acceptance length tau.

    The same command goes on where a run stopped, by Ctrl-C (which saves, then
    exits with 130), by SIGTERM (so too, with 143) or otherwise; train.out of
    another run, or in use by one, is refused. Samples longer than train.seq_len
    are left out and counted, or refused by name with train.long_samples=refuse.

    Where train.data has no samples yet and the section data says of what they
    are made, they are made first, as `eagle3 data` would.

    Before it begins it says what it will take of its device's memory, by parts.
    With train.features=FOLDER the target's features are made once, read from
    there in each epoch, and the target's layers give their memory back.

    On several GPUs: torchrun --nproc-per-node 8 -m eagle3 train …; each takes
    train.batch_size rows, of data that is there.

    Examples:

      eagle3 data --out data/smollm2 --set humaneval:100

      eagle3 train train.data=data/smollm2 train.out=heads/smollm2 train.draft_vocab_size=16000

      eagle3 generate draft=eagle3 draft.checkpoint=heads/smollm2 spec=chain --prompt "What is a prime number?"

      eagle3 train recipe=train_smollm2

      eagle3 train conf=llama8b train.data=data/llama train.out=heads/llama train.lr=5e-5 train.accumulate=2 --json
    """
    from eagle3.config import load

    return load.run(partial(task, json_), flags, overrides, look=apart())


def apart() -> Callable[["Composed"], list[Problem]]:
    """Looks at a sweep's jobs one after the other: no two that differ may fill one folder."""
    seen: dict[str, tuple[object, ...]] = {}

    def look(composed: "Composed") -> list[Problem]:
        from eagle3.train.run import settings

        out, mine = composed.config.train.out, (settings(composed.config.train), composed.config.target)
        if out is None or seen.setdefault(out, mine) == mine:
            return []
        message = "another job of the sweep fills it: name the folder by what is swept, as in heads/${train.lr}"
        return [Problem("train.out", message, out)]

    return look


def task(json_: bool, composed: "Composed") -> "Outcome":
    """Train; the simulated acceptance length at the end, and the loss of step 1."""
    import os

    from eagle3.config.results import Outcome
    from eagle3.train.data_run import lacking, release
    from eagle3.train.run import ready, train_head

    first = os.environ.get("RANK", "0") == "0"
    if first:
        print_problems(composed.warnings, "yellow")
    ready(composed)  # before hours of answers
    if lacking(composed.config):
        console().print(table(make(composed, drafting=False)))
        release()
    try:
        with loading("weights") as progress, told(first) as tell:
            done = train_head(composed, tell.update, progress, telling, tell.score)
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C and SIGTERM
        if first:
            message = f"stopped; the same command goes on from what is in {composed.config.train.out}"
            console().print(message, style="yellow")
        raise
    summary = done.summary
    if first and json_:
        score = asdict(summary.score)
        typer.echo(
            json.dumps(
                {
                    "overrides": list(composed.overrides),
                    "updates": summary.updates,
                    "tokens": summary.tokens,
                    "epochs": summary.epochs,
                    "seconds": summary.seconds,
                    "samples": done.samples,
                    "skipped": done.skipped,
                    **score,
                    "memory": summary.memory.told(),
                    "head": str(summary.head),
                    "already_done": summary.already,
                }
            )
        )
    elif first:
        print_heading()
        out = console(stderr=False)
        out.print(f"{summary.updates} updates, {summary.tokens} tokens, {summary.epochs:.1f} epochs")
        out.print(f"{done.samples} samples, {done.skipped} longer than train.seq_len left out")
        out.print(f"accuracy by step: {' '.join(f'{a:.3f}' for a in summary.score.accuracy)}")
        out.print(f"tau {summary.score.tau:.2f} in chains of {len(summary.score.accuracy)}, on samples not learnt from")
        if (peak := summary.memory.peak) is not None:
            out.print(f"memory: {peak / 2**30:.2f} GiB at most, {summary.memory.paper.sum / 2**30:.2f} GiB on paper")
        out.print(f"head: draft.checkpoint={summary.head}")
    return Outcome(summary.score.tau, {"tau": summary.score.tau, "loss": summary.score.loss[0]})


@dataclass(frozen=True)
class Teller:
    """What is told while it trains: in a terminal's bar, else in the log; `first`: of one rank alone."""

    first: bool
    bar: "Progress"
    line: "TaskID"

    def update(self, now: "Figures") -> None:
        """Loss and accuracy of the first and the last step of training-time test, tokens a second."""
        text = f"loss {steps(now.loss, 2)}, accuracy {steps(now.accuracy, 3)}, {now.tokens_per_second:.0f} tokens/s"
        self.bar.update(self.line, total=now.updates, completed=now.update, description=text)
        if self.bar.disable:
            self._say(f"update {now.update} of {now.updates}: {text}")

    def score(self, update: int, updates: int, score: "Score") -> None:
        """What held-out samples say of the head."""
        accuracy = " ".join(f"{a:.3f}" for a in score.accuracy)
        self._say(f"update {update} of {updates}: on held-out samples tau {score.tau:.2f}, accuracy by step {accuracy}")

    def _say(self, text: str) -> None:
        if not self.first:
            return
        if self.bar.disable:
            log.info("%s", text)
        else:
            self.bar.console.print(text)


def steps(values: "Sequence[float]", digits: int) -> str:
    """The first and the last of what was measured step by step, in words."""
    ends = dict.fromkeys((1, len(values)))
    return " … ".join(f"{values[step - 1]:.{digits}f} (step {step})" for step in ends)


@contextmanager
def told(first: bool) -> Iterator[Teller]:
    """A bar on a terminal's stderr, and what fills it."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), "{task.description}", TimeRemainingColumn())
    with bar(*columns, stays=True, shown=first) as (shown, row):
        yield Teller(first, shown, row)
