"""What `eagle3 benchmark` does instead of its passes: minutes of mixed load, or a kernel alone."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from eagle3.errors import ConfigError, Problem, RunError

if TYPE_CHECKING:
    from eagle3.config.load import Composed


def alone(modes: Mapping[str, bool], others: Mapping[str, object]) -> str | None:
    """The mode that is asked for. Raises `ConfigError` where another mode, or a flag of the passes, is given too."""
    asked = [name for name, given in modes.items() if given]
    if not asked:
        return None
    beside = [*asked[1:], *(name for name, given in others.items() if given)]
    if beside:
        message = f"cannot go with {', '.join(beside)}: it measures something else"
        raise ConfigError([Problem(asked[0], message, beside, "command line")])
    return asked[0]


def minutes(given: float | None) -> float:
    """A time that ends. Raises `ConfigError` for others."""
    if given is None or not (math.isfinite(given) and given > 0):
        raise ConfigError([Problem("--soak", "wants minutes, more than 0", given, "command line")])
    return given


def soak_task(seconds: float, json_: bool, composed: "Composed") -> float:
    """Mixed load for so long; output tokens a second. Raises `RunError` where pages, slots or memory stay away.

    Ctrl-C goes on when what was measured is told.
    """
    from eagle3.bench.report import soak_record, soak_table
    from eagle3.bench.soak import soak
    from eagle3.build.engine import build_engine
    from eagle3.cli.report import loading, print_heading, print_problems
    from eagle3.config.terminal import console
    from eagle3.engine.warmup import warm

    print_problems(composed.warnings, "yellow")
    with loading("weights") as progress:
        engine = build_engine(composed, progress)
    device = engine.runner.preparer.device
    if device.type == "cuda":
        with console().status("warm-up") as status:
            warm(engine, status.update)
    with ticking("mixed load", seconds) as tell:
        found = soak(engine, seconds, tell)
    done = soak_record(composed.overrides, found, device)
    if json_:
        typer.echo(json.dumps(done))
    else:
        print_heading()
        console(stderr=False).print(soak_table(done))
    if found.stopped:
        raise KeyboardInterrupt
    if found.failed:
        raise RunError(f"mixed load: {', '.join(found.failed)} did not come back to what they were")
    return float(done["soak"]["output_throughput"])


def kernels_task(json_: bool, composed: "Composed") -> float:
    """Time tree attention alone; microseconds at the first batch size. Raises `ConfigError` without a GPU."""
    from eagle3.bench.kernels import time_kernels
    from eagle3.bench.report import kernels_record, kernels_table
    from eagle3.build.target import pick_device
    from eagle3.cli.report import print_heading, print_problems
    from eagle3.config.terminal import console

    print_problems(composed.warnings, "yellow")
    with console().status("kernels"):
        times = time_kernels(composed)
    done = kernels_record(composed.overrides, times, pick_device(composed.config.runtime.device))
    if json_:
        typer.echo(json.dumps(done))
    else:
        print_heading()
        console(stderr=False).print(kernels_table(done))
    return times[0].us


@contextmanager
def ticking(what: str, seconds: float) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal's stderr with the time that is left, gone when done; call it with the seconds gone."""
    from rich.progress import BarColumn

    from eagle3.config.terminal import bar

    columns = ("{task.description}", BarColumn(), "{task.fields[left]} left")
    with bar(*columns, total=seconds, description=what, left=clock(seconds)) as (shown, row):
        yield lambda gone: shown.update(row, completed=min(gone, seconds), left=clock(seconds - gone))


def clock(seconds: float) -> str:
    """Minutes and seconds; 0:00 when the time is over."""
    whole = max(0, math.ceil(seconds))
    return f"{whole // 60}:{whole % 60:02}"
