"""How problems, warnings and errors look on the terminal: always on stderr, one clear block."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eagle3.errors import ConfigError, Eagle3Error, Problem

if TYPE_CHECKING:
    from rich.console import Console


def console(stderr: bool = True) -> "Console":
    """A console that neither wraps nor reads markup or names of emoji in what it prints."""
    from rich.console import Console

    made = Console(stderr=stderr, soft_wrap=True, markup=False, emoji=False, highlight=False)
    if not made.is_terminal:
        made.width = 240  # nothing of a table is cut where nobody sees its edge
    return made


def seen(problem: Problem) -> str:
    """The value of a problem, as a user would write it."""
    value = getattr(problem.value, "value", problem.value)
    return json.dumps(value, ensure_ascii=False, default=str)


def print_problems(problems: Iterable[Problem], style: str) -> None:
    """Key and what is wanted; below, what was seen and who set it."""
    out = console()
    for problem in problems:
        out.print(f"  {problem.key}", style=f"bold {style}", end="")
        out.print(f"  {problem.message}")
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
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console(), transient=True, disable=not console().is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
