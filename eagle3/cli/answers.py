"""What `generate` prints: text as it comes, or a JSON line a request, in the order of the prompts."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields

import typer

from eagle3.config.terminal import console
from eagle3.engine.engine import Event, Result
from eagle3.engine.rescore import Rescore
from eagle3.engine.stats import SpecMetrics


class Answers:
    """Takes events in any order. The first request that is not done streams; others wait for their turn."""

    def __init__(
        self, count: int, as_json: bool, *, trace: bool = False, colour: bool = False, verify: bool = False
    ) -> None:
        """`trace` and `verify` add to the JSON, whose lines wait for the latter; `colour` marks accepted drafts."""
        self.refused = 0
        self._json = as_json
        self._trace = trace
        self._colour = colour and colourful()
        self._verify = verify
        self._count = count
        self._waiting: list[list[str]] = [[] for _ in range(count)]
        self._ids: list[list[str]] = [[] for _ in range(count)]  # as they are shown where there is no text
        self._results: list[Result | None] = [None] * count
        self._checks: list[Rescore | None] = [None] * count
        self._turn = 0
        self._tokens = 0
        self._started = time.perf_counter()
        self._seconds: float | None = None
        if not as_json:
            self._open()

    @property
    def rate(self) -> float:
        """Output tokens a second so far, or until verification began."""
        return self._tokens / self._elapsed()

    def take(self, event: Event) -> None:
        """One event of the engine; a request's id is its place among the prompts."""
        self._tokens += len(event.token_ids)
        place = int(event.request_id)
        if not self._json:
            accepted = event.accepted or 0
            self._ids[place] += [self._marked([str(t)], i < accepted) for i, t in enumerate(event.token_ids)]
            text = self._marked(event.pieces[:accepted], True) + self._marked(event.pieces[accepted:], False)
            if place == self._turn:
                _write(text)
            else:
                self._waiting[place].append(text)
        if event.result is not None:
            self.end(event.result)

    def end(self, result: Result) -> None:
        """A request has ended; print all whose turn it now is."""
        self._results[int(result.request_id)] = result
        self.refused += result.finish_reason == "error"
        if not (self._json and self._verify):
            self._flush()

    def verify(self, rescore: Callable[[Result], Rescore]) -> None:
        """Hold every answer against the target alone, and tell on stderr where one differs."""
        self._seconds = self._elapsed()
        for place, result in enumerate(self._results):
            if result is not None and result.sampling is not None:
                self._checks[place] = rescore(result)
        self._flush()
        checks = [check for check in self._checks if check]
        for place, check in enumerate(self._checks):
            if check and check.ok is False:
                console().print(f"verify: prompt {place}: {_difference(check)}", style="yellow")
        different = sum(check.ok is False for check in checks)
        unjudged = sum(check.ok is None for check in checks)
        told = f"verify: {different} of {len(checks)} answers differ from the target's own"
        if unjudged:
            told += f", {unjudged} cannot be compared: with drawn drafts they are equal in law only"
        console().print(told, style="yellow" if different else "dim")

    def close(self, spec: SpecMetrics | None) -> None:
        """The last lines, on stderr: how much, how fast, and how well it was guessed."""
        self._seconds = self._elapsed()
        self._flush()
        told = f"{self._tokens} tokens in {self._seconds:.2f} s, {self.rate:.1f} tokens/s"
        console().print(told, style="dim")
        if spec is not None:
            console().print(summary(spec), style="dim")

    def _elapsed(self) -> float:
        return time.perf_counter() - self._started if self._seconds is None else self._seconds

    def _flush(self) -> None:
        while self._turn < self._count and (done := self._results[self._turn]) is not None:
            self._close(done)
            self._turn += 1
            if self._turn < self._count and not self._json:
                self._open()

    def _open(self) -> None:
        if self._count > 1:
            heading = f"── prompt {self._turn} "
            console(stderr=False).print(heading + "─" * (40 - len(heading)), style="bold")
        for text in self._waiting[self._turn]:
            _write(text)

    def _close(self, result: Result) -> None:
        if self._json:
            typer.echo(json.dumps(self._record(result), ensure_ascii=False))
        elif result.error is not None:
            console().print(f"refused: {result.error}", style="red")
        elif result.text is None:
            _write(",".join(self._ids[self._turn]) + "\n")
        else:
            _write("\n")

    def _record(self, result: Result) -> dict[str, object]:
        """A request as a JSON object."""
        record = {f.name: getattr(result, f.name) for f in fields(result) if f.name != "sampling"}
        record["logprobs"] = None if result.logprobs is None else [asdict(told) for told in result.logprobs]
        record["metrics"] = result.metrics.json(self._trace) if result.metrics else None
        if self._verify:
            check = self._checks[int(result.request_id)]
            record["verify"] = asdict(check) if check else None
        return record

    def _marked(self, pieces: Sequence[str], accepted: bool) -> str:
        text = "".join(pieces)
        return typer.style(text, fg=typer.colors.GREEN) if text and accepted and self._colour else text


def summary(spec: SpecMetrics) -> str:
    """How well a run was guessed, in one line."""
    tau = "–" if spec.mean_acceptance_length is None else f"{spec.mean_acceptance_length:.2f}"
    steps = " ".join(map(str, spec.acceptance_histogram))
    forced = "" if spec.acceptance_valid else "; synthetic, not valid for acceptance"
    return f"tau {tau} over {spec.num_spec_steps} steps (histogram {steps}){forced}"


def colourful() -> bool:
    """Whether stdout takes colours: a terminal, unless NO_COLOR says no or FORCE_COLOR yes."""
    if os.environ.get("NO_COLOR"):
        return False
    return os.environ.get("FORCE_COLOR", "0") not in ("", "0") or sys.stdout.isatty()


def _difference(check: Rescore) -> str:
    return (
        f"token {check.position} of the answer is {check.token}, the target says {check.target_token} "
        f"(gap of its two best logits {check.gap:.3g})"
    )


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
