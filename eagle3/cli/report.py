"""How problems, warnings and errors look on the terminal (on stderr, one clear block), and tables as other formats."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from eagle3.config.terminal import bar, console
from eagle3.errors import ConfigError, Eagle3Error, Problem

if TYPE_CHECKING:
    from rich.table import Table


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


def seen(problem: Problem) -> str:
    """The value of a problem, as a user would write it."""
    value = getattr(problem.value, "value", problem.value)
    return json.dumps(value, ensure_ascii=False, default=str)


def print_problems(problems: Iterable[Problem], style: str) -> None:
    """Key and what is wanted; below, what was seen and who set it."""
    out = console()
    for problem in problems:
        out.print(f"  {problem.key}", style=f"bold {style}", end="")
        out.print("  " + problem.message.replace("\n  ", "\n      "))
        out.print(f"      seen {seen(problem)}, from {problem.origin or 'the defaults'}", style="dim")


def print_error(error: Eagle3Error) -> None:
    """An error of ours, in one block."""
    out = console()
    if isinstance(error, ConfigError):
        count = len(error.problems)
        out.print(f"{count} problem{'s' if count > 1 else ''} in the configuration", style="bold red")
        print_problems(error.problems, "red")
    else:
        out.print(f"{type(error).__name__}: ", style="bold red", end="")
        out.print(str(error))


def as_dict(problem: Problem) -> dict[str, object]:
    """A problem for JSON."""
    value = getattr(problem.value, "value", problem.value)
    return {"key": problem.key, "value": value, "wanted": problem.message, "origin": problem.origin}


@contextmanager
def loading(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for bytes on a terminal's stderr, gone when done; call it with (done, total)."""
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with bar(*columns, description=what) as (shown, row):
        yield lambda done, total: shown.update(row, completed=done, total=total)


def print_heading() -> None:
    """The number and the overrides of a sweep's job on stdout, above what it prints; nothing in a single run."""
    from eagle3.config.run import heading

    if job := heading():
        console(stderr=False).print(job)


def as_csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lines with their ends: the head, then the rows; what is None is left empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def as_markdown(table: "Table") -> str:
    """The lines of a table as people paste it, under its title if it has one."""
    head = [str(column.header) for column in table.columns]
    rule = ["---:" if column.justify == "right" else ":---" for column in table.columns]
    rows = zip(*(map(str, column.cells) for column in table.columns), strict=True)
    cells = ([cell.replace("|", "\\|") for cell in line] for line in (head, rule, *rows))
    lines = [f"| {' | '.join(line)} |" for line in cells]
    title = [str(table.title), ""] if table.title else []
    return "\n".join([*title, *lines, ""])
