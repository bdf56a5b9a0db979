"""`eagle3 check`: judge configurations without a GPU or the hub; of files that are here the headers are enough."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3.cli.options import Json, no_multirun, takes_overrides
from eagle3.cli.report import as_dict, print_problems
from eagle3.config.flags import HydraFlags
from eagle3.config.terminal import console
from eagle3.config.units import parsed, size
from eagle3.errors import ConfigError, Problem

if TYPE_CHECKING:
    from eagle3.config.load import Composed
    from eagle3.config.schema import EngineConfig


class Output(StrEnum):
    """How the outcome is printed."""

    text = "text"
    json = "json"
    github = "github"


@dataclass(frozen=True)
class Verdict:
    """What became of one configuration."""

    name: str
    problems: tuple[Problem, ...]
    composed: "Composed | None"
    warnings: tuple[Problem, ...] = ()
    config: "EngineConfig | None" = None  # with the facts that the files tell
    report: tuple[tuple[str, str], ...] = ()  # what the files tell

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        shape = memory = per_token = None
        if self.composed is not None:
            from eagle3.config.sizes import kv_bytes_per_token, memory_sum

            s, config = self.composed.shape, self.config or self.composed.config
            shape = {"D": s.depth, "K": s.top_k, "N": s.nodes, "R": s.reserve}
            memory, per_token = dict(memory_sum(config, s)), kv_bytes_per_token(config)
        return {
            "name": self.name,
            "ok": not self.problems,
            "problems": [as_dict(problem) for problem in self.problems],
            "warnings": [as_dict(problem) for problem in self.warnings],
            "not_runnable": list(self.composed.not_runnable) if self.composed else [],
            "shape": shape,
            "memory_bytes": memory,
            "kv_bytes_per_token": per_token,
            "files": [{"what": what, "told": words} for what, words in self.report],
        }


def _verdict(name: str, overrides: Sequence[str], flags: HydraFlags, memory: int | None, files: bool) -> Verdict:
    from eagle3.config.load import compose

    try:
        composed = compose(overrides, config_dir=flags.config_dir, config_name=flags.config_name)
    except ConfigError as error:
        return Verdict(name, error.problems, None)
    verdict = Verdict(name, (), composed, composed.warnings)
    if files:
        verdict = _with_files(verdict, composed)
    return verdict if memory is None else _with_memory(verdict, composed, memory)


def _with_files(verdict: Verdict, composed: "Composed") -> Verdict:
    """With what the files tell that are here; nothing heavy is imported where none is."""
    from eagle3.build.folders import at_hand

    folders = at_hand(composed.config)
    if folders.target is None and folders.head is None:
        report = tuple(("not here", name) for name in folders.absent)
        problems, warnings = (tuple(map(composed.placed, found)) for found in (folders.problems, folders.warnings))
        return replace(verdict, problems=problems, warnings=(*verdict.warnings, *warnings), report=report)
    from eagle3.build.preflight import preflight

    found = preflight(composed, folders)
    notes = (composed.placed(Problem("draft.checkpoint", note, str(folders.head))) for note in found.notes)
    warnings = (*verdict.warnings, *found.warnings, *notes)
    return replace(verdict, problems=found.problems, warnings=warnings, config=found.config, report=found.report)


def _with_memory(verdict: Verdict, composed: "Composed", memory: int) -> Verdict:
    """With what fits in so many bytes of a GPU."""
    from eagle3.build.preflight_memory import memory_fit

    problems, fits = memory_fit(verdict.config or composed.config, composed.shape, memory)
    told = (*verdict.problems, *map(composed.placed, problems))
    return replace(verdict, problems=told, report=(*verdict.report, ("GPU", fits)))


def _all(flags: HydraFlags, overrides: Sequence[str], memory: int | None) -> list[Verdict]:
    from eagle3.config.catalogue import TEMPLATES, catalogue

    wholes = [entry for entry in catalogue(flags.config_dir) if entry.group in ("conf", "recipe")]
    return [
        _verdict(
            f"{entry.group}={entry.name}",
            [f"{entry.group}={entry.name}", *TEMPLATES.get(entry.name, ()), *overrides],
            flags,
            memory,
            files=False,
        )
        for entry in wholes
    ]


def _print_text(verdict: Verdict, brief: bool) -> None:
    out, told = console(stderr=False), verdict.as_dict()
    if verdict.problems:
        count = len(verdict.problems)
        console().print(f"✗ {verdict.name}: {count} problem{'s' if count > 1 else ''}", style="bold red")
        print_problems(verdict.problems, "red")
        for what, words in verdict.report:
            if what == "not judged":
                console().print(f"{what}: {words}")
    else:
        missing = f", not runnable yet: {'; '.join(told['not_runnable'])}" if told["not_runnable"] else ""
        out.print(f"✓ {verdict.name}{missing}", style="yellow" if missing else "green")
    if verdict.warnings:
        console().print("warnings", style="bold yellow")
        print_problems(verdict.warnings, "yellow")
    if not brief and not verdict.problems:
        _print_sizes(verdict, told)


def _print_sizes(verdict: Verdict, told: dict[str, Any]) -> None:
    """The shape, what the files tell and what takes memory, of a configuration that is `told` as a dict."""
    out = console(stderr=False)
    shape, memory = told["shape"], told["memory_bytes"]
    meanings = ("drafts deep", "wide", "rows a request", "entries kept free")
    numbers = zip(shape.items(), meanings, strict=True)
    out.print("  shape   " + ", ".join(f"{letter} {number} {what}" for (letter, number), what in numbers))
    for what, words in verdict.report:
        out.print(f"  {what:{max(map(len, dict(verdict.report)))}}  {words}")
    if memory:
        out.print(f"  memory  {size(sum(memory.values()))} without the page pool:")
        for name, count in memory.items():
            out.print(f"    {size(count):>10}  {name}")
        out.print(f"    {size(told['kv_bytes_per_token']):>10}  K/V for each token in the pool")
    else:
        out.print("  memory  unknown without facts of the target")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _print_github(verdict: Verdict) -> None:
    for level, problems in (("error", verdict.problems), ("warning", verdict.warnings)):
        for problem in problems:
            origin = problem.origin or ""
            file = f"file={origin}," if origin.endswith(".yaml") and not origin.startswith("override") else ""
            text = _escaped(f"{verdict.name}: {problem}")
            typer.echo(f"::{level} {file}title={problem.key}::{text}")


@takes_overrides
def check(
    flags: HydraFlags,
    overrides: list[str],
    all_: Annotated[bool, typer.Option("--all", help="Check every shipped engine and recipe.")] = False,
    json_: Json = False,
    format_: Annotated[Output, typer.Option("--format", help="How to print the outcome.")] = Output.text,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-memory", metavar="SIZE", help="Check that the engine fits a GPU of this size: 80GiB."),
    ] = None,
) -> int:
    """Tell everything that is wrong with a configuration: no GPU, weights or network are needed.

    Of checkpoints whose files are on this machine the headers are looked at too, but for --all.

    Exit code 0: all rules hold; 2: some are broken.

    Examples:

      eagle3 check conf=llama8b spec.max_draft_len=8

      eagle3 check --config-dir . conf=mine --gpu-memory 80GiB

      eagle3 check --all --format github
    """
    from eagle3.config.load import show

    no_multirun(flags)
    if show(flags, overrides):
        return 0
    name = " ".join(overrides) or "the default configuration"
    memory = None if gpu_memory is None else parsed(gpu_memory)
    if memory == 0:
        raise typer.BadParameter(f"--gpu-memory must be a size such as 80GiB or 80GB, not {gpu_memory!r}")
    verdicts = _all(flags, overrides, memory) if all_ else [_verdict(name, overrides, flags, memory, files=True)]
    failed = any(verdict.problems for verdict in verdicts)
    if json_ or format_ is Output.json:
        told = {"ok": not failed, "configs": [verdict.as_dict() for verdict in verdicts]}
        typer.echo(json.dumps(told, indent=2, default=str))
    for verdict in () if json_ or format_ is Output.json else verdicts:
        if format_ is Output.github:
            _print_github(verdict)
        else:
            _print_text(verdict, brief=all_)
    return 2 if failed else 0
