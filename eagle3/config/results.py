"""What the jobs of a sweep came to: numbers by name, what was swept, and a table of it."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

Result = dict[str, Any]  # what a job's result.json holds, and its folder
Tell = Callable[[Sequence[Result]], None]

NUMBERS = {  # by their names in result.json: heads of columns, and how people read them
    "output_throughput": ("tok/s", "{:.1f}"),
    "speedup": ("speed-up", "{:.2f}×"),
    "tau": ("τ", "{:.2f}"),
    "step_ms": ("ms a step", "{:.2f}"),
    "loss": ("loss of step 1", "{:.3f}"),
}


@dataclass(frozen=True)
class Outcome:
    """What a task came to: `value`, the more the better, and `numbers` by the names of NUMBERS; None is unknown."""

    value: float
    numbers: Mapping[str, float | None]
    acceptance_valid: bool = True  # False: tau was forced, or comes from made-up prompts


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


def settings(result: Result) -> dict[str, str]:
    """A job's overrides by key."""
    pairs = (text.lstrip("+~").partition("=") for text in result["overrides"])
    return {key: value for key, _, value in pairs}


def swept(results: Sequence[Result]) -> list[str]:
    """The keys whose values differ between jobs, as they first come."""
    jobs = [settings(result) for result in results]
    keys = dict.fromkeys(key for job in jobs for key in job)
    return [key for key in keys if len({job.get(key) for job in jobs}) > 1]


def best(results: Sequence[Result]) -> int | None:
    """The place of the job with the largest value; None where there is no other to compare, or more is not better."""
    told_ = ((i, result["value"]) for i, result in enumerate(results) if result["numbers"])
    values = {i: value for i, value in told_ if value is not None}
    return max(values, key=values.__getitem__) if len(values) > 1 else None


def columns(results: Sequence[Result]) -> list[str]:
    """The numbers that some job tells."""
    return [name for name in NUMBERS if any(name in result["numbers"] for result in results)]


def rows(results: Sequence[Result]) -> tuple[list[str], list[list[object]]]:
    """The head and a row a job, all numbers as they are; None is unknown."""
    keys, names, first = swept(results), columns(results), best(results)
    head = ["job", *keys, "status", "best", "value", *names, "acceptance_valid", "folder", "error"]
    found: list[list[object]] = []
    for i, result in enumerate(results):
        set_, numbers = settings(result), result["numbers"]
        told_ = [result["status"], i == first, result["value"], *map(numbers.get, names)]
        end = [result["acceptance_valid"], result["folder"], result["error"]]
        found.append([i, *map(set_.get, keys), *told_, *end])
    return head, found


def table(results: Sequence[Result]) -> Table:
    """A row a job for people: what was swept, what came of it, failed jobs in red and the best in green."""
    keys, names, first = swept(results), columns(results), best(results)
    value = not names and any(result["value"] is not None for result in results)
    out = Table("job", *keys)
    for name in names:
        out.add_column(NUMBERS[name][0], justify="right")
    if value:
        out.add_column("value", justify="right")
    out.add_column("status")
    out.add_column("folder", overflow="fold")
    for i, result in enumerate(results):
        status = "done, best" if i == first else result["status"]
        cells = [str(i), *(settings(result).get(key, "–") for key in keys), *(_cell(result, name) for name in names)]
        if value:
            cells.append("–" if result["value"] is None else f"{result['value']:.6g}")
        style = {"failed": "red", "done, best": "green"}.get(status)
        out.add_row(*cells, status, os.path.relpath(result["folder"]), style=style)
    return out


def _cell(result: Result, name: str) -> str:
    number = result["numbers"].get(name)
    if number is None:
        return "–"
    forced = name == "tau" and not result["acceptance_valid"]
    return NUMBERS[name][1].format(number) + (" (not valid)" if forced else "")


def print_table(results: Sequence[Result]) -> None:
    """The table on stderr, and the errors of jobs that failed."""
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 240
    console.print(table(results))
    print_failures(results)


def print_failures(results: Sequence[Result]) -> None:
    """The errors of jobs that failed, on stderr."""
    console = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)
    for number, result in enumerate(results):
        if result["error"]:
            console.print(f"job {number} failed: {result['error']}", style="red")
