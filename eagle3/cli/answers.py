"""What `generate` prints: text as it comes, or a JSON line a request, in the order of the prompts."""

import json
import sys
import time
from dataclasses import asdict

import typer

from eagle3.cli.report import console
from eagle3.engine.engine import Event, Result


class Answers:
    """Takes events in any order. The first request that is not done streams; others wait for their turn."""

    def __init__(self, count: int, as_json: bool) -> None:
        self.refused = 0
        self._json = as_json
        self._count = count
        self._waiting: list[list[str]] = [[] for _ in range(count)]
        self._results: list[Result | None] = [None] * count
        self._turn = 0
        self._tokens = 0
        self._started = time.perf_counter()
        if not as_json:
            self._open()

    @property
    def rate(self) -> float:
        """Output tokens a second so far."""
        return self._tokens / (time.perf_counter() - self._started)

    def take(self, event: Event) -> None:
        """One event of the engine; a request's id is its place among the prompts."""
        self._tokens += len(event.token_ids)
        place = int(event.request_id)
        if event.text and not self._json:
            if place == self._turn:
                _write(event.text)
            else:
                self._waiting[place].append(event.text)
        if event.result is not None:
            self.end(event.result)

    def end(self, result: Result) -> None:
        """A request has ended; print all whose turn it now is."""
        self._results[int(result.request_id)] = result
        self.refused += result.finish_reason == "error"
        while self._turn < self._count and (done := self._results[self._turn]) is not None:
            self._close(done)
            self._turn += 1
            if self._turn < self._count and not self._json:
                self._open()

    def close(self) -> None:
        """The last line, on stderr: how much, how fast."""
        seconds = time.perf_counter() - self._started
        console().print(f"{self._tokens} tokens in {seconds:.2f} s, {self.rate:.1f} tokens/s", style="dim")

    def _open(self) -> None:
        if self._count > 1:
            heading = f"── prompt {self._turn} "
            console(stderr=False).print(heading + "─" * (40 - len(heading)), style="bold")
        for text in self._waiting[self._turn]:
            _write(text)

    def _close(self, result: Result) -> None:
        if self._json:
            typer.echo(json.dumps(_record(result), ensure_ascii=False))
        elif result.error is not None:
            console().print(f"refused: {result.error}", style="red")
        elif result.text is None:
            _write(",".join(map(str, result.token_ids)) + "\n")
        else:
            _write("\n")


def _record(result: Result) -> dict[str, object]:
    """A request as a JSON object."""
    record = asdict(result)
    record["metrics"] = result.metrics.json() if result.metrics else None
    return record


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
