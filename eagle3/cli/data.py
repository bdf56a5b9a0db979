"""`eagle3 data`: make what a head is trained on."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3.cli.options import Chat, Json, takes_overrides
from eagle3.cli.report import loading, print_problems
from eagle3.config.flags import HydraFlags
from eagle3.config.terminal import bar, console
from eagle3.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from eagle3.config.load import Composed
    from eagle3.train.data_answers import Tell

log = logging.getLogger(__name__)


@takes_overrides
def data(
    flags: HydraFlags,
    overrides: list[str],
    out: Annotated[
        str | None, typer.Option("--out", metavar="FOLDER", help="Where the samples go. [default: train.data]")
    ] = None,
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
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", help="The longest answer. [default: 512]")
    ] = None,
    eval_share: Annotated[
        float | None,
        typer.Option("--eval-share", help="Share of the prompts whose answers are not trained on. [default: 0.02]"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of the split, of draws, of the choice in a set. [default: 0]")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", help="Answers at once. [default: runtime.max_batch_size]")
    ] = None,
    chat: Chat = None,
    json_: Json = False,
) -> int:
    """Collect prompts, let the target answer them, and write samples to train a head on.

    Prompts that come twice are asked once; each belongs to train or to eval, with all its answers. Answers are the
    engine's own, with drafting if it has a head. What is done is kept: the same command goes on after a stop, and one
    with more prompts adds to them; FOLDER/parts/answers.jsonl is for that alone.

    What is asked is the section data of the configuration; flags are the short way, and take the place of its values.

    FOLDER gets train.jsonl.gz and eval.jsonl.gz, a line a sample: ids, and answers, the spans of ids that the target
    wrote. Its meta.json says what they are made of.

    Examples:

      eagle3 data --out chat --set self:2000 --set stdlib:1000 --hold-out humaneval --batch 64

      eagle3 data conf=llama8b --out mine --prompt-file questions.jsonl --max-new-tokens 1024 --batch 256

      eagle3 data recipe=train_smollm2

      eagle3 data conf=tiny --out toy --prompt-file ids.jsonl --json
    """
    from eagle3.config import load
    from eagle3.config.overrides import written

    if flags.multirun:
        raise typer.BadParameter("the jobs of a sweep would write to one folder: run them one by one")
    given = {
        "train.data": out,
        "data.prompt_files": prompt_file,
        "data.sets": set_,
        "data.hold_out": hold_out,
        "data.temperatures": temperature,
        "data.max_new_tokens": max_new_tokens,
        "data.eval_share": eval_share,
        "data.seed": seed,
        "data.batch": batch,
        "data.chat": chat,
    }
    flagged = [written(key, value) for key, value in given.items() if value is not None and value != []]
    return load.run(partial(task, json_), flags, [*overrides, *flagged])


def task(json_: bool, composed: "Composed") -> float:
    """Make the data of a configuration; samples written."""
    meta = make(composed, drafting=True)
    out = str(Path(str(composed.config.train.data)).absolute())
    if json_:
        typer.echo(json.dumps({"out": out, **meta}, ensure_ascii=False))
    else:
        console(stderr=False).print(table(meta))
        typer.echo(out)
    return float(meta["train"]["samples"] + meta["eval"]["samples"])


def make(composed: "Composed", *, drafting: bool) -> "dict[str, Any]":
    """Fill train.data as a configuration says, by its engine, with its head if `drafting`; returns meta.json."""
    from eagle3.build.engine import build_engine
    from eagle3.build.folders import at_hand
    from eagle3.train.data import make_data
    from eagle3.train.data_run import answering, data_options
    from eagle3.train.data_target import claim, target_mark

    own = answering(composed, drafting=drafting)
    print_problems(own.warnings, "yellow")
    own.require_runnable()
    if lost := at_hand(own.config).lost:
        raise ConfigError(lost)
    out, options = data_options(own.config)
    target = target_mark(own.config.target)
    claim(out, target)  # before weights are read
    with loading("weights") as progress:
        engine = build_engine(own, progress)
    try:
        with telling() as tell:
            return make_data(engine, target, options, out, lambda line: console().print(line), tell)
    except KeyboardInterrupt:
        console().print(f"stopped; the same command goes on from what is in {out}", style="yellow")
        raise


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
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    begun: dict[str, tuple[float, int]] = {}  # when, and twentieths told
    with bar(*columns, "{task.fields[rate]:.0f} tokens/s", rate=0.0) as (shown, row):

        def tell(what: str, done: int, total: int, tokens: int) -> None:
            now, part = time.perf_counter(), 20 * done // max(total, 1)
            started, told = begun.get(what, (now, part)) if tokens else (now, part)
            speed = tokens / max(now - started, 1e-9)
            shown.update(row, description=what, completed=done, total=total, rate=speed)
            if part > told and shown.disable:
                log.info("%s: %d of %d, %.0f tokens/s", what, done, total, speed)
            begun[what] = started, part

        yield tell
