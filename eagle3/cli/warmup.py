"""`eagle3 warmup`: compile and capture everything that requests will run."""

import json
import logging
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import typer

from eagle3.cli.options import Json, takes_overrides
from eagle3.config.flags import HydraFlags

if TYPE_CHECKING:
    from rich.table import Table

    from eagle3.build.memory import Memory
    from eagle3.config.load import Composed
    from eagle3.engine.warmup import FirstRequest, Warmed, WarmedPass, WarmedPrompts


log = logging.getLogger(__name__)


@takes_overrides
def warmup(flags: HydraFlags, overrides: list[str], json_: Json = False) -> int:
    """Build the engine, capture its CUDA graphs for every batch size, kind of draw and size of prompt pass.

    Shows what each graph cost and how long a replay takes, what still runs eagerly, what memory is used for before and
    after, and how the first request compares with later ones. Kernels that were compiled stay in Triton's cache on
    disk, so a later start compiles nothing. On a CPU there are no graphs: prompts of every shape are served eagerly.

    Examples:

      eagle3 warmup conf=llama8b

      eagle3 warmup conf=llama8b runtime.cuda_graph_batch_sizes=[1,4,8] --json
    """
    from eagle3.config import load

    return load.run(partial(task, json_), flags, overrides)


def task(json_: bool, composed: "Composed") -> float:
    """Warm an engine up; the seconds it took from nothing to ready."""
    from eagle3.build.engine import build_engine
    from eagle3.build.memory import Memory
    from eagle3.cli.report import loading, print_heading, print_problems
    from eagle3.config.terminal import console
    from eagle3.engine.warmup import first_request, warm

    print_problems(composed.warnings, "yellow")
    started = time.perf_counter()
    with loading("weights") as progress:
        engine = build_engine(composed, progress)
    built, before = time.perf_counter(), Memory.of(engine)
    with console().status("warm-up") as status:
        done = warm(engine, status.update)
        seconds = time.perf_counter() - started
        status.update("first request")
        first = first_request(engine)
    after = Memory.of(engine)
    log.info("memory after warm-up: %s", after)
    if json_:
        told = {
            "overrides": list(composed.overrides),
            "build_s": built - started,
            "ready_s": seconds,
            "graphs": [asdict(row) for row in done.graphs],
            "prompt_graphs": [asdict(row) for row in done.passes],
            "prompts": [asdict(row) for row in done.prompts],
            "eager": done.eager,
            "memory": {"before": asdict(before), "after": asdict(after)},
            "first_request": {**asdict(first), "ratio": first.ratio},
        }
        typer.echo(json.dumps(told))
        return seconds
    print_heading()
    out = console(stderr=False)
    if done.passes:
        out.print(pass_table(done.passes))
    tables = graph_table(done.graphs), prompt_table(done.prompts), memory_table(before, after), first_table(first)
    for table in tables:
        out.print(table)
    out.print(f"eager: {', '.join(done.eager) or 'nothing'}")
    console().print(f"ready after {seconds:.1f} s, {built - started:.1f} s of them to build", style="dim")
    return seconds


def graph_table(graphs: "list[Warmed]") -> "Table":
    """A row a graph."""
    from rich.table import Table

    table = Table("requests", "draw", "compile s", "capture s", "memory MiB", "ms a replay")
    for row in graphs:
        memory = "eager" if row.memory_bytes is None else f"{row.memory_bytes / 2**20:.1f}"
        replay = "–" if row.replay_ms is None else f"{row.replay_ms:.3f}"
        table.add_row(str(row.requests), row.draw, f"{row.compile_s:.2f}", f"{row.capture_s:.2f}", memory, replay)
    return table


def pass_table(passes: "list[WarmedPass]") -> "Table":
    """A row a graph of prompt passes."""
    from rich.table import Table

    table = Table("prompt rows", "requests", "ends", "compile s", "capture s", "memory MiB", "ms a replay")
    for row in passes:
        cost = (f"{row.compile_s:.2f}", f"{row.capture_s:.2f}", f"{row.memory_bytes / 2**20:.1f}")
        ends = "some" if row.ending else "none"
        table.add_row(str(row.rows), str(row.requests), ends, *cost, f"{row.replay_ms:.3f}")
    return table


def prompt_table(prompts: "list[WarmedPrompts]") -> "Table":
    """A row a shape of prompt passes."""
    from rich.table import Table

    table = Table("prompts", "tokens", "draw", "s")
    for row in prompts:
        table.add_row(str(row.requests), str(row.rows), row.draw, f"{row.seconds:.3f}")
    return table


def memory_table(before: "Memory", after: "Memory") -> "Table":
    """What takes how much, before and after warm-up."""
    from rich.table import Table

    table = Table("memory", "before", "after")
    for (name, was), (_, now) in zip(before.rows(), after.rows(), strict=True):
        table.add_row(name, was, now)
    return table


def first_table(first: "FirstRequest") -> "Table":
    """The first request beside later ones."""
    from rich.table import Table

    name = f"{first.prompt_tokens} prompt tokens, {first.output_tokens} new"
    table = Table(name, "first request", "median of the next", "ratio")
    times = (("TTFT ms", first.ttft_ms, first.later_ttft_ms), ("total ms", first.total_ms, first.later_total_ms))
    for what, once, later in times:
        table.add_row(what, f"{once:.2f}", f"{later:.2f}", f"{once / later:.2f}")
    return table
