"""`eagle3 benchmark`: the engine with and without drafting, on the same prompts, in one run."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3.cli.bench_modes import alone, kernels_task, minutes, soak_task
from eagle3.cli.options import Json, takes_overrides
from eagle3.cli.report import Format
from eagle3.config.flags import HydraFlags
from eagle3.errors import ConfigError, Problem

if TYPE_CHECKING:
    from eagle3.bench.run import Cell
    from eagle3.bench.workload import Workload
    from eagle3.config.load import Composed
    from eagle3.config.results import Outcome, Result
    from eagle3.config.schema import BenchConfig
    from eagle3.engine.engine import Engine
    from eagle3.text.prompts import Prompt


@dataclass(frozen=True)
class Options:
    """What a run takes beside its configuration; travels to a sweep's workers."""

    prompts: "tuple[Prompt, ...]"  # none: made-up token ids
    format: Format
    profile: bool = False
    trace: str | None = None


@takes_overrides
def benchmark(
    flags: HydraFlags,
    overrides: list[str],
    prompt_file: Annotated[
        list[str] | None,
        typer.Option("--prompt-file", metavar="FILE", help="Real prompts; without them ids are made up."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also split the step of each arm and batch size into its parts.")
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Also write a chrome trace of a few steps of the engine's own arm, at the first batch size.",
        ),
    ] = None,
    soak: Annotated[
        float | None,
        typer.Option("--soak", metavar="MINUTES", help="Instead: mixed load on the engine's own arm for so long."),
    ] = None,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Instead: time the attention kernel alone, without weights.")
    ] = False,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="How results are printed: csv has every number. [default: table]"),
    ] = None,
    json_: Json = False,
) -> int:
    """Measure steps, latency, throughput and acceptance, plain and speculative, by batch size.

    Both arms share the target and run the same prompts in turns: one unscored pass, then bench.repeats scored ones.
    Three numbers are min, median and max. The floor is what a step must read or compute at the speed measured on this
    device, "–" on one that is not known. --profile runs further, unscored passes. Acceptance on made-up ids, or with spec.synthetic_acceptance, is not valid.

    --soak serves prompts and answers of all lengths, sampled in all ways, some aborted, a tenth of the time a window,
    and fails (1) if pages, slots or memory do not come back. --kernels times tree attention over runtime.max_seq_len entries, for each of bench.batch_sizes.

    --json is --format json. In csv a row is an arm at a batch size. With -m csv and markdown print one table of all jobs, own
    arm and first batch size of each, and the jobs' own tables go to stderr; with --json each job prints its record. The best
    is marked among jobs of equal bench.… and sampling.max_new_tokens, where acceptance is valid and plain decoding is
    not faster.

    Examples:

      eagle3 benchmark bench.output_len=64 --prompt-file questions.jsonl

      eagle3 benchmark conf=llama8b target.load_format=dummy draft.load_format=dummy spec.synthetic_acceptance=3 bench=serving runtime.max_batch_size=32

      eagle3 benchmark conf=tiny --profile --trace steps.json

      eagle3 benchmark conf=tiny --soak 0.5

      eagle3 benchmark conf=llama8b runtime.max_seq_len=32768 --kernels

      eagle3 benchmark -m spec.max_draft_len=3,5,7 conf=llama8b --prompt-file questions.jsonl --format markdown
    """  # noqa: E501
    from eagle3.cli.prompts import given_prompts
    from eagle3.config import load

    if load.show(flags, overrides):
        return 0
    format_ = chosen(format_, json_)
    others = {"--prompt-file": prompt_file, "--profile": profile, "--trace": trace}
    if instead := alone({"--soak": soak is not None, "--kernels": kernels}, others):
        if format_ in (Format.csv, Format.markdown):
            message = f"cannot go with {instead}, which prints a table or json"
            raise ConfigError([Problem("--format", message, format_, "command line")])
        as_json = format_ is Format.json
        if instead == "--kernels":
            return load.run(partial(kernels_task, as_json), flags, overrides)
        return load.run(partial(soak_task, 60 * minutes(soak), as_json), flags, overrides)
    prompts = given_prompts((), prompt_file, ()) if prompt_file else ()
    if own := [i for i, p in enumerate(prompts) if p.sampling]:
        message = "sampling of their own is not measured; leave it out, or set sampling.… for all"
        raise ConfigError([Problem("--prompt-file", message, [f"prompt {i}" for i in own[:5]], "command line")])
    if trace is not None:
        trace = trace_file(trace, flags)
    options = Options(prompts, format_, profile, trace)
    from eagle3.cli.prompts import file_faults

    return load.run(partial(task, options), flags, overrides, partial(print_sweep, format_), file_faults)


def chosen(given: Format | None, json_: bool) -> Format:
    """The format that is asked for. Raises `ConfigError` where two are."""
    if json_ and given not in (None, Format.json):
        raise ConfigError([Problem("--format", "contradicts --json: leave one out", given, "command line")])
    return Format.json if json_ else given or Format.table


def print_sweep(format_: Format, results: "Sequence[Result]") -> None:
    """A sweep's results on stdout; where that holds the jobs' own JSON, as a table on stderr."""
    from eagle3.cli.report import as_csv, as_markdown
    from eagle3.config.results import notes, print_failures, print_table, rows, table
    from eagle3.config.terminal import console

    if format_ not in (Format.csv, Format.markdown):
        print_table(results, stderr=format_ is Format.json)
        return
    text = as_csv(*rows(results)) if format_ is Format.csv else as_markdown(table(results, spread=True))
    typer.echo(text, nl=False)
    for line in notes(results):
        console().print(line)
    print_failures(results)


def trace_file(given: str, flags: HydraFlags) -> str:
    """Where the trace goes. Raises `ConfigError` where nothing can be written, and for many jobs with one file."""
    path = Path(given).absolute()
    message = None
    if flags.multirun:
        message = "wants a single run: the jobs of a sweep would write the same file"
    elif path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        message = "wants a file that can be written, in a folder that exists"
    if message:
        raise ConfigError([Problem("--trace", message, given, "command line")])
    return str(path)


def task(options: Options, composed: "Composed") -> "Outcome":
    """Measure a configuration; what its own arm came to at the first batch size."""
    from eagle3.bench.profile import trace
    from eagle3.bench.report import outcome, record
    from eagle3.build.engine import build_arms
    from eagle3.cli.prompts import faults_before
    from eagle3.cli.report import loading, print_problems
    from eagle3.config.results import Stopped
    from eagle3.config.rules_engine import bench_fits
    from eagle3.config.terminal import console
    from eagle3.text.sets import read_set

    print_problems(composed.warnings, "yellow")
    bench = composed.config.bench
    prompts = options.prompts or (read_set(bench.prompts) if bench.prompts else ())
    problems = faults_before(composed, prompts)
    if options.prompts and bench.prompts:
        message = "names prompts, and so does --prompt-file: leave one out"
        problems.append(Problem("bench.prompts", message, bench.prompts))
    if not prompts:
        problems += bench_fits(composed.config, bench.prompt_len)
    if problems:
        raise ConfigError(problems)
    with loading("weights") as progress:
        arms = build_arms(composed, progress)
    own = arms["spec" if "spec" in arms else "plain"]
    work = workload(prompts, own)
    if problems := list(bench_fits(composed.config, max(map(len, work.prompts)))):
        raise ConfigError(problems)
    cells, stopped = measured(options, arms, work, bench)
    if stopped:
        console().print(interruption(cells, bench), style="yellow")
    if not cells:
        raise KeyboardInterrupt
    done = record(composed.config, composed.overrides, cells, work, own.runner.preparer.device, stopped=stopped)
    print_record(options, done)
    arm = next(name for name, engine in arms.items() if engine is own)
    if stopped:
        raise Stopped(outcome(done, arm) if any(cell.arm == arm for cell in cells) else None)
    if options.trace:  # after what was measured is told, as writing may fail
        with console().status("trace"):
            trace(own, work.batch(bench.batch_sizes[0], 0), bench.output_len, Path(options.trace))
    return outcome(done, arm)


def interruption(cells: "Sequence[Cell]", bench: "BenchConfig") -> str:
    """What Ctrl-C left of a benchmark, in words."""
    if not cells:
        return "interrupted before the end of the first pass"
    last = cells[-1]
    begun = {cell.batch for cell in cells}
    left = ", ".join(str(batch) for batch in bench.batch_sizes if batch not in begun)
    passes = f"interrupted: {last.arm} has {len(last.passes)} of {bench.repeats} passes at batch {last.batch}"
    return f"{passes}; batch {left} not begun" if left else passes


def measured(
    options: Options, arms: "dict[str, Engine]", work: "Workload", bench: "BenchConfig"
) -> "tuple[list[Cell], bool]":
    """The cells of all batch sizes; by Ctrl-C those measured so far, and True. It goes on where there is none."""
    from eagle3.bench.profile import profile
    from eagle3.bench.run import CutShort, measure
    from eagle3.config.terminal import console
    from eagle3.engine.warmup import tune

    cells: list[Cell] = []
    try:
        with console().status("benchmark") as status:
            for engine in arms.values():
                tune(engine, status.update)
            for batch in bench.batch_sizes:
                found = measure(arms, work, batch, bench.output_len, bench.repeats, status.update)
                cells += found
                if options.profile:
                    status.update(f"batch {batch}, profile")
                    ids = work.batch(batch, 0)
                    told = [replace(c, profile=profile(arms[c.arm], ids, bench.output_len)) for c in found]
                    cells[-len(told) :] = told
    except KeyboardInterrupt as stop:
        return cells + (stop.cells if isinstance(stop, CutShort) else []), True
    return cells, False


def print_record(options: Options, done: dict[str, Any]) -> None:
    """A run's record on stdout; a sweep's job leaves it to the one table in csv and markdown."""
    from eagle3.bench.flat import flat
    from eagle3.bench.report import profile_table, table
    from eagle3.cli.report import as_csv, as_markdown
    from eagle3.config.run import heading
    from eagle3.config.terminal import console

    job = heading()
    apart = job is not None and options.format in (Format.csv, Format.markdown)
    tables = [table(done), *([profile_table(done)] if options.profile else [])]
    if options.format is Format.json:
        typer.echo(json.dumps(done))
    elif options.format is Format.table or apart:
        for shown in (*([job] if job else []), *tables):
            console(stderr=apart).print(shown)
    elif options.format is Format.csv:
        typer.echo(as_csv(*flat(done)), nl=False)
    else:
        typer.echo("\n".join(map(as_markdown, tables)), nl=False)


def workload(prompts: "Sequence[Prompt]", engine: "Engine") -> "Workload":
    """The prompts that are given, or made-up ones that differ from pass to pass."""
    from eagle3.bench.workload import given, made_up
    from eagle3.cli.prompts import encoded

    bench = engine.config.bench
    if prompts:
        template = engine.tokenizer is not None and engine.tokenizer.chat_template is not None
        return given(encoded(engine, prompts, chat=None), chat=template and any(p.ids is None for p in prompts))
    return made_up(max(bench.batch_sizes) * bench.repeats, bench.prompt_len, engine.vocab)
