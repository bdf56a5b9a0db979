"""Consoles and progress bars, made alike for all that is told on a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, TaskID


def console(stderr: bool = True, wrap: bool = False) -> "Console":
    """A console that reads no markup or names of emoji in what it prints, and wraps (at COLUMNS) only if asked."""
    from rich.console import Console

    made = Console(stderr=stderr, soft_wrap=not wrap, markup=False, emoji=False, highlight=False)
    if not wrap and not made.is_terminal:
        made.width = 240  # nothing of a table is cut where nobody sees its edge
    return made


@contextmanager
def bar(
    *columns: "str | ProgressColumn",
    description: str = "",
    total: float | None = None,
    stays: bool = False,
    shown: bool = True,
    **fields: Any,  # noqa: ANN401
) -> "Iterator[tuple[Progress, TaskID]]":
    """A bar of one row on a terminal's stderr, disabled elsewhere and unless `shown`, gone when done unless it `stays`.

    A column that is text is a format over `task`, the row.
    """
    from rich.progress import Progress

    out = console()
    disable = not (shown and out.is_terminal)
    with Progress(*columns, console=out, transient=not stays, disable=disable, refresh_per_second=4) as made:
        yield made, made.add_task(description, total=total, **fields)
