"""`eagle3 warmup`: compile and capture everything that generations will replay."""

import json
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import typer

from eagle3.cli.options import Json, takes_overrides
from eagle3.config.flags import HydraFlags

if TYPE_CHECKING:
    from eagle3.config.load import Composed


@takes_overrides
def warmup(flags: HydraFlags, overrides: list[str], json_: Json = False) -> int:
    """Build the engine, run its step for every batch size and kind of draw, and capture the CUDA graphs.

    Shows what each graph cost and how long a replay takes. Kernels that were compiled stay in Triton's cache on disk,
    so a later start compiles nothing. On a CPU there are no graphs: the step runs once.

    Examples:

      eagle3 warmup conf=llama8b

      eagle3 warmup conf=llama8b runtime.cuda_graph_batch_sizes=[1,4,8] --json
    """
    from eagle3.config import load

    return load.run(partial(task, json_), flags, overrides)


def task(json_: bool, composed: "Composed") -> float:
    """Warm an engine up; the seconds it took from nothing to ready."""
    from eagle3.build.engine import build_engine
    from eagle3.cli.report import console, loading, print_problems
    from eagle3.engine.warmup import warm

    print_problems(composed.warnings, "yellow")
    started = time.perf_counter()
    with loading("weights") as progress:
        engine = build_engine(composed, progress)
    built = time.perf_counter()
    with console().status("warm-up") as status:
        rows = warm(engine, status.update)
    seconds = time.perf_counter() - started
    if json_:
        told = {"build_s": built - started, "ready_s": seconds, "graphs": [asdict(row) for row in rows]}
        typer.echo(json.dumps(told))
        return seconds
    from rich.table import Table

    table = Table("requests", "draw", "compile s", "capture s", "memory MiB", "ms a replay")
    for row in rows:
        memory = "eager" if row.memory_bytes is None else f"{row.memory_bytes / 2**20:.1f}"
        numbers = (
            f"{row.compile_s:.2f}",
            f"{row.capture_s:.2f}",
            memory,
            "–" if row.replay_ms is None else f"{row.replay_ms:.3f}",
        )
        table.add_row(str(row.requests), row.draw, *numbers)
    console(stderr=False).print(table)
    console().print(f"ready after {seconds:.1f} s, {built - started:.1f} s of them to build", style="dim")
    return seconds
