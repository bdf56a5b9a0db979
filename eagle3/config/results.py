"""What the jobs of a sweep came to: numbers by name, what was swept, and a table of it."""

import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from eagle3.config.schema import EngineConfig
from eagle3.config.terminal import console

Result = dict[str, Any]  # what a job's result.json holds, and its folder
Tell = Callable[[Sequence[Result]], None]

NUMBERS = {  # by their names in result.json: heads of columns, and how people read them
    "output_throughput": ("tokens/s", "{:.1f}"),
    "output_throughput_min": ("min tokens/s", "{:.1f}"),
    "output_throughput_max": ("max tokens/s", "{:.1f}"),
    "plain_output_throughput": ("plain tokens/s", "{:.1f}"),
    "passes": ("passes", "{:.0f}"),
    "speedup": ("speed-up", "{:.2f}×"),
    "tau": ("τ", "{:.2f}"),
    "step_ms": ("ms a step", "{:.2f}"),
    "loss": ("loss of step 1", "{:.3f}"),
}
SPREAD = ("output_throughput_min", "output_throughput_max", "passes")  # left out where the screen is narrow


@dataclass(frozen=True)
class Outcome:
    """What a task came to: `value`, the more the better, and `numbers` by the names of NUMBERS; None is unknown."""

    value: float
    numbers: Mapping[str, float | None]
    acceptance_valid: bool = True  # False: tau was forced, or comes from made-up prompts


class Stopped(KeyboardInterrupt):
    """Ctrl-C, after what a task came to until then was told."""

    def __init__(self, outcome: Outcome | None) -> None:
        super().__init__()
        self.outcome = outcome


def told(outcome: Outcome | float | None) -> Result:
    """An outcome as result.json holds it; what is not finite is unknown."""
    if not isinstance(outcome, Outcome):
        return {"value": _finite(outcome), "numbers": {}, "acceptance_valid": None}
    assert outcome.numbers.keys() <= NUMBERS.keys()
    numbers = {name: _finite(outcome.numbers[name]) for name in NUMBERS if name in outcome.numbers}
    valid = outcome.acceptance_valid if numbers.get("tau") is not None else None
    return {"value": _finite(outcome.value), "numbers": numbers, "acceptance_valid": valid}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def load(config: EngineConfig) -> dict[str, str]:
    """What an engine is asked to do, values as a user writes them: jobs that differ here are not compared."""
    pairs = [(f"bench.{key}", value) for key, value in asdict(config.bench).items()]
    pairs.append(("sampling.max_new_tokens", config.sampling.max_new_tokens))
    return {key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":")) for key, value in pairs}


def settings(overrides: Sequence[str]) -> dict[str, str]:
    """A job's overrides by key."""
    pairs = (text.lstrip("+~").partition("=") for text in overrides)
    return {key: value for key, _, value in pairs}


def swept(results: Sequence[Result]) -> list[str]:
    """The keys whose values differ between jobs, also between jobs that never began, as they first come."""
    known = {key for result in results for key in result.get("swept", ())}
    return varied([result["overrides"] for result in results], known)


def varied(jobs: Sequence[Sequence[str]], known: Collection[str] = ()) -> list[str]:
    """The keys whose values differ between jobs of these overrides, and those that are `known` to."""
    values = [settings(overrides) for overrides in jobs]
    keys = dict.fromkeys(key for job in values for key in job)
    return [key for key in keys if key in known or len({job.get(key) for job in values}) > 1]


def differing(results: Sequence[Result]) -> dict[str, list[str | None]]:
    """The keys in which jobs differ, and each job's value: what was swept, then what a swept file brought with it.

    Of the latter what belongs to a swept key, or differs just as a key before it, is left out.
    """
    found: dict[str, list[str | None]] = {
        key: [settings(r["overrides"]).get(key) for r in results] for key in swept(results)
    }
    for brought in ("choices", "load"):
        for key in dict.fromkeys(key for result in results for key in result[brought]):
            cells = [result[brought].get(key) for result in results]
            own = key in found or key.partition(".")[0] in found
            if not own and len({*cells} - {None}) > 1 and cells not in found.values():
                found[key] = cells
    return found


def best(results: Sequence[Result]) -> set[int]:
    """The places of jobs with the largest value of those that ended under the same load, where there are others.

    None where more is not better, where acceptance is not valid, or where plain decoding is faster.
    """
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for i, result in enumerate(results):
        if result["status"] == "done" and result["numbers"] and result["value"] is not None and _valid(result):
            groups.setdefault(tuple(result["load"].items()), []).append(i)
    first = {max(group, key=lambda i: results[i]["value"]) for group in groups.values() if len(group) > 1}
    return {i for i in first if (results[i]["numbers"].get("speedup") or 1) >= 1}


def _valid(result: Result) -> bool:
    return result["acceptance_valid"] is not False


def _crown(result: Result) -> str:
    """The best by what: the number that is its value."""
    by = next((NUMBERS[name][0] for name, number in result["numbers"].items() if number == result["value"]), "value")
    return f"best: {by}"


def notes(results: Sequence[Result]) -> list[str]:
    """What to know of the numbers, a line each."""
    speedups = [speedup for r in results if _valid(r) and (speedup := r["numbers"].get("speedup")) is not None]
    found = []
    if speedups and max(speedups) < 1:
        found.append("no job is faster than plain decoding")
    if any(result["numbers"].get("passes") == 1 for result in results):
        found.append("the numbers are of one pass (bench.repeats=1): differences may be noise")
    return found


def columns(results: Sequence[Result]) -> list[str]:
    """The numbers that some job tells."""
    return [name for name in NUMBERS if any(name in result["numbers"] for result in results)]


def rows(results: Sequence[Result]) -> tuple[list[str], list[list[object]]]:
    """The head and a row a job, all numbers as they are; None is unknown."""
    keys, names, crowned = differing(results), columns(results), best(results)
    head = ["job", *keys, "status", "best", "value", *names, "acceptance_valid", "folder", "error"]
    found: list[list[object]] = []
    for i, result in enumerate(results):
        row = [i, *(cells[i] for cells in keys.values()), result["status"], i in crowned, result["value"]]
        row += [*map(result["numbers"].get, names), result["acceptance_valid"], result["folder"], result["error"]]
        found.append(row)
    return head, found


def table(results: Sequence[Result], spread: bool = False) -> Table:
    """A row a job for people: in what they differ, what came of it, failed jobs in red and the best in green.

    With `spread` also how much passes differed.
    """
    keys, crowned = differing(results), best(results)
    names = [name for name in columns(results) if spread or name not in SPREAD]
    value = not names and any(result["value"] is not None for result in results)
    out = Table("job", *keys)
    for name in names:
        out.add_column(NUMBERS[name][0], justify="right")
    if value:
        out.add_column("value", justify="right")
    out.add_column("status")
    out.add_column("folder", overflow="fold")
    for i, result in enumerate(results):
        status = f"done, {_crown(result)}" if i in crowned else result["status"]
        cells = [str(i), *("–" if (cell := of[i]) is None else cell for of in keys.values())]
        cells += [_cell(result, name) for name in names]
        if value:
            cells.append("–" if result["value"] is None else f"{result['value']:.6g}")
        style = "green" if i in crowned else {"failed": "red"}.get(status)
        out.add_row(*cells, status, os.path.relpath(result["folder"]), style=style)
    return out


def _cell(result: Result, name: str) -> str:
    number = result["numbers"].get(name)
    if number is None:
        return "–"
    forced = name in ("tau", "speedup") and not _valid(result)
    return NUMBERS[name][1].format(number) + (" (not valid)" if forced else "")


def print_table(results: Sequence[Result], stderr: bool = True) -> None:
    """The table and what to know of it, on stderr or stdout, and on stderr the errors of jobs that failed."""
    out = console(stderr)
    out.print(table(results))
    for line in notes(results):
        out.print(line)
    print_failures(results)


def print_failures(results: Sequence[Result]) -> None:
    """The errors of jobs that failed, on stderr."""
    out = console()
    for number, result in enumerate(results):
        if result["error"]:
            out.print(f"job {number} failed: {result['error']}", style="red")
