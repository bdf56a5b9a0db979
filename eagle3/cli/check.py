"""`eagle3 check`: judge configurations without a GPU, weights or the hub."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3.cli.options import Json, no_multirun, takes_overrides
from eagle3.cli.report import as_dict, console, print_problems
from eagle3.config.flags import HydraFlags
from eagle3.errors import ConfigError, Problem

if TYPE_CHECKING:
    from eagle3.config.load import Composed


class Format(StrEnum):
    """How the outcome is printed."""

    text = "text"
    json = "json"
    github = "github"


@dataclass(frozen=True)
class Outcome:
    """What became of one configuration."""

    name: str
    problems: tuple[Problem, ...]
    composed: "Composed | None"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        shape = memory = per_token = None
        if self.composed is not None:
            from eagle3.config.sizes import kv_bytes_per_token, memory_sum

            s, config = self.composed.shape, self.composed.config
            shape = {"D": s.depth, "K": s.top_k, "N": s.nodes, "R": s.reserve}
            memory, per_token = dict(memory_sum(config, s)), kv_bytes_per_token(config)
        return {
            "name": self.name,
            "ok": not self.problems,
            "problems": [as_dict(problem) for problem in self.problems],
            "warnings": [as_dict(problem) for problem in (self.composed.warnings if self.composed else ())],
            "not_runnable": list(self.composed.not_runnable) if self.composed else [],
            "shape": shape,
            "memory_bytes": memory,
            "kv_bytes_per_token": per_token,
        }


def _outcome(name: str, overrides: Sequence[str], flags: HydraFlags) -> Outcome:
    from eagle3.config.load import compose

    try:
        composed = compose(overrides, config_dir=flags.config_dir, config_name=flags.config_name)
    except ConfigError as error:
        return Outcome(name, error.problems, None)
    return Outcome(name, (), composed)


def _all(flags: HydraFlags, overrides: Sequence[str]) -> list[Outcome]:
    from eagle3.config.catalogue import TEMPLATES, catalogue

    wholes = [entry for entry in catalogue(flags.config_dir) if entry.group in ("conf", "recipe")]
    return [
        _outcome(
            f"{entry.group}={entry.name}",
            [f"{entry.group}={entry.name}", *TEMPLATES.get(entry.name, ()), *overrides],
            flags,
        )
        for entry in wholes
    ]


def size(count: int) -> str:
    """Bytes with a unit."""
    value, units = float(count), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 1024:
        value, unit = value / 1024, next(units)
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _print_text(outcome: Outcome, brief: bool) -> None:
    out, told = console(stderr=False), outcome.as_dict()
    if outcome.problems:
        count = len(outcome.problems)
        console().print(f"✗ {outcome.name}: {count} problem{'s' if count > 1 else ''}", style="bold red")
        print_problems(outcome.problems, "red")
        return
    assert outcome.composed is not None
    missing = f", not runnable yet: {'; '.join(told['not_runnable'])}" if told["not_runnable"] else ""
    out.print(f"✓ {outcome.name}{missing}", style="yellow" if missing else "green")
    if outcome.composed.warnings:
        console().print("warnings", style="bold yellow")
        print_problems(outcome.composed.warnings, "yellow")
    if brief:
        return
    shape, memory = told["shape"], told["memory_bytes"]
    out.print("  shape   " + ", ".join(f"{letter} {number}" for letter, number in shape.items()))
    if memory:
        out.print(f"  memory  {size(sum(memory.values()))} without the page pool:")
        for name, count in memory.items():
            out.print(f"    {size(count):>10}  {name}")
        out.print(f"    {size(told['kv_bytes_per_token']):>10}  K/V for each token in the pool")
    else:
        out.print("  memory  unknown without inline facts of the target")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _print_github(outcome: Outcome) -> None:
    levels = [("error", outcome.problems)]
    levels.append(("warning", outcome.composed.warnings if outcome.composed else ()))
    for level, problems in levels:
        for problem in problems:
            origin = problem.origin or ""
            file = f"file={origin}," if origin.endswith(".yaml") and not origin.startswith("override") else ""
            text = _escaped(f"{outcome.name}: {problem}")
            typer.echo(f"::{level} {file}title={problem.key}::{text}")


@takes_overrides
def check(
    flags: HydraFlags,
    overrides: list[str],
    all_: Annotated[bool, typer.Option("--all", help="Check every shipped engine and recipe.")] = False,
    json_: Json = False,
    format_: Annotated[Format, typer.Option("--format", help="How to print the outcome.")] = Format.text,
) -> int:
    """Tell everything that is wrong with a configuration: no GPU, weights or network are needed.

    Exit code 0: all rules hold; 2: some are broken.

    Examples:

      eagle3 check conf=llama8b spec.max_draft_len=8

      eagle3 check --config-dir . conf=mine

      eagle3 check --all --format github
    """
    from eagle3.config.load import show

    no_multirun(flags)
    if show(flags, overrides):
        return 0
    name = " ".join(overrides) or "the default configuration"
    outcomes = _all(flags, overrides) if all_ else [_outcome(name, overrides, flags)]
    failed = any(outcome.problems for outcome in outcomes)
    if json_ or format_ is Format.json:
        told = {"ok": not failed, "configs": [outcome.as_dict() for outcome in outcomes]}
        typer.echo(json.dumps(told, indent=2, default=str))
    for outcome in () if json_ or format_ is Format.json else outcomes:
        if format_ is Format.github:
            _print_github(outcome)
        else:
            _print_text(outcome, brief=all_)
    return 2 if failed else 0
