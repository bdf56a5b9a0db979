"""`eagle3 data`: make what a head is trained on."""

import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3.cli.options import Chat, Json, takes_overrides
from eagle3.config.flags import HydraFlags
from eagle3.errors import ConfigError, Problem

if TYPE_CHECKING:
    from rich.table import Table

    from eagle3.config.load import Composed
    from eagle3.text.prompts import Prompt
    from eagle3.train.data import DataOptions
    from eagle3.train.data_answers import Tell

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What a run of `data` takes beside its configuration."""

    data: "DataOptions"
    out: Path
    json: bool


@takes_overrides
def data(
    flags: HydraFlags,
    overrides: list[str],
    out: Annotated[str | None, typer.Option("--out", metavar="FOLDER", help="Where the samples go. Required.")] = None,
    prompt_file: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt-file",
            metavar="FILE",
            help="Prompts: one a line, or .jsonl with prompt, messages or prompt_ids; - is stdin. May be repeated.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME:COUNT",
            help="Prompts by name: humaneval, gsm_symbolic (or gsm_symbolic:SEED:COUNT), stdlib (functions of Python's "
            "standard library, to be filled), self (questions the target writes). May be repeated.",
        ),
    ] = None,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(
            "--hold-out",
            metavar="SET|FILE",
            help="Leave out prompts that share 13 words in a row with this set or file. May be repeated.",
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option("--temperature", help="An answer at this temperature; may be repeated. [default: 0 and 1]"),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="The longest answer.")] = 512,
    eval_share: Annotated[
        float,
        typer.Option("--eval-share", min=0, max=0.5, help="Share of the prompts whose answers are not trained on."),
    ] = 0.02,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the split, of draws, of the choice in a set.")] = 0,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Answers at once. [default: runtime.max_batch_size]")
    ] = None,
    chat: Chat = None,
    json_: Json = False,
) -> int:
    """Collect prompts, let the target answer them, and write samples to train a head on.

    Prompts that come twice are asked once; each belongs to train or to eval, with all its answers. Answers are the
    engine's own, with drafting if it has a head. What is done is kept: the same command goes on after a stop, and one
    with more prompts adds to them; FOLDER/parts/answers.jsonl is for that alone.

    FOLDER gets train.jsonl.gz and eval.jsonl.gz, a line a sample: ids, and answers, the spans of ids that the target
    wrote. Its meta.json says what they are made of.

    Examples:

      eagle3 data --out chat --set self:2000 --set stdlib:1000 --hold-out humaneval --batch 64

      eagle3 data conf=llama8b --out mine --prompt-file questions.jsonl --max-new-tokens 1024 --batch 256

      eagle3 data conf=tiny --out toy --prompt-file ids.jsonl --json
    """
    from eagle3.config import load
    from eagle3.train.data import DataOptions

    if flags.multirun:
        raise typer.BadParameter("the jobs of a sweep would write to one folder: run them one by one")
    if load.show(flags, overrides):
        return 0
    if out is None:
        raise ConfigError([Problem("--out", "wants a folder for the samples", origin="command line")])
    temperatures = tuple(temperature or (0.0, 1.0))
    if temperatures.count(0.0) > 1 or not all(0 <= t < float("inf") for t in temperatures):
        message = "wants numbers from 0 on, 0 at most once: greedy answers are all the same"
        raise ConfigError([Problem("--temperature", message, list(temperatures), "command line")])
    if eval_share == 0:
        message = "must be above 0: a head is held against answers that it did not learn from"
        raise ConfigError([Problem("--eval-share", message, eval_share, "command line")])
    sources, questions = asked(prompt_file or (), set_ or (), seed)
    held = held_prompts(hold_out or (), seed)
    options = DataOptions(sources, questions, held, temperatures, max_new_tokens, eval_share, seed, chat)
    overrides = [*overrides, f"sampling.max_new_tokens={max_new_tokens}"]
    if batch is not None:
        overrides.append(f"runtime.max_batch_size={batch}")
    return load.run(partial(task, Options(options, Path(out).absolute(), json_)), flags, overrides)


def asked(
    prompt_files: Sequence[str], sets: Sequence[str], seed: int
) -> "tuple[tuple[tuple[str, tuple[Prompt, ...]], ...], int]":
    """Prompts by source, files first, and how many questions the target is to write; every fault at once."""
    from eagle3.text.prompts import read_prompts
    from eagle3.text.sets import read_set
    from eagle3.train.data_prompts import without_sampling

    sources: list[tuple[str, tuple[Prompt, ...]]] = []
    problems: list[Problem] = []
    questions = 0
    if not prompt_files and not sets:
        message = "none is given: use --prompt-file FILE or --set NAME:COUNT"
        raise ConfigError([Problem("prompts", message, origin="command line")])
    for name in (*prompt_files, *sets):
        try:
            if name in prompt_files:
                prompts = read_prompts(name)
                without_sampling(name, prompts)
                sources.append((name, tuple(prompts)))
            elif name.partition(":")[0] == "self":
                questions += _count(name)
            else:
                sources.append((name, tuple(read_set(name, seed))))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tuple(sources), questions


def held_prompts(names: Sequence[str], seed: int) -> "tuple[Prompt, ...]":
    """The prompts of sets and files that must not be trained on."""
    from eagle3.text.prompts import read_prompts
    from eagle3.text.sets import SETS, read_set

    found: list[Prompt] = []
    for name in names:
        is_set = name.partition(":")[0] in SETS or not Path(name).exists()
        found += read_set(name, seed) if is_set else read_prompts(name)
    return tuple(found)


def _count(name: str) -> int:
    """COUNT of self:COUNT."""
    count = name.partition(":")[2]
    if not re.fullmatch(r"[1-9]\d{0,8}", count):
        raise ConfigError([Problem("prompt set", "wants self:COUNT, COUNT at least 1", name, "command line")])
    return int(count)


def task(options: Options, composed: "Composed") -> float:
    """Make the data with the engine of a configuration; samples written."""
    from eagle3.build.engine import build_engine
    from eagle3.cli.report import console, loading, print_problems
    from eagle3.train.data import make_data
    from eagle3.train.data_target import claim, target_mark

    print_problems(composed.warnings, "yellow")
    composed.require_runnable()
    target = target_mark(composed.config.target)
    claim(options.out, target)  # before weights are read
    with loading("weights") as progress:
        engine = build_engine(composed, progress)
    try:
        with telling() as tell:
            meta = make_data(engine, target, options.data, options.out, lambda line: console().print(line), tell)
    except KeyboardInterrupt:
        console().print(f"stopped; the same command goes on from what is in {options.out}", style="yellow")
        raise
    if options.json:
        typer.echo(json.dumps({"out": str(options.out), **meta}, ensure_ascii=False))
    else:
        console(stderr=False).print(table(meta))
        typer.echo(str(options.out))
    return float(meta["train"]["samples"] + meta["eval"]["samples"])


def table(meta: dict[str, Any]) -> "Table":
    """What was made, a row a source and a row a split."""
    from rich.table import Table

    shown = Table("prompts", "given", "unusable", "twice", "held out", "too long", "kept")
    for name, tally in meta["sources"].items():
        shown.add_row(name, *map(str, tally.values()))
    told = (
        f"{split}: {size['samples']} samples, {size['tokens']} tokens, {size['answer_tokens']} of them answers"
        for split, size in (("train", meta["train"]), ("eval", meta["eval"]))
    )
    shown.caption = "\n".join(told)
    return shown


@contextmanager
def telling() -> "Iterator[Tell]":
    """A bar on a terminal's stderr, gone when done; elsewhere a line in the log every twentieth."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from eagle3.cli.report import console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    rate = TextColumn("{task.fields[rate]:.0f} tokens/s")
    shown = console().is_terminal
    begun: dict[str, tuple[float, int]] = {}  # when, and twentieths told
    with Progress(*columns, rate, console=console(), transient=True, disable=not shown, refresh_per_second=2) as bar:
        row = bar.add_task("", total=None, rate=0.0)

        def tell(what: str, done: int, total: int, tokens: int) -> None:
            now, part = time.perf_counter(), 20 * done // max(total, 1)
            started, told = begun.get(what, (now, part)) if tokens else (now, part)
            speed = tokens / max(now - started, 1e-9)
            bar.update(row, description=what, completed=done, total=total, rate=speed)
            if part > told and not shown:
                log.info("%s: %d of %d, %.0f tokens/s", what, done, total, speed)
            begun[what] = started, part

        yield tell
