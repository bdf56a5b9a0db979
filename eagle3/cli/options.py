"""Flags and overrides that commands share, declared once."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from enum import Enum, StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated

import typer

from eagle3.cli import completion
from eagle3.config.flags import HydraFlags

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
Texts = Annotated[list[str] | None, typer.Option("--prompt", help="A prompt; may be given several times.")]
Ids = Annotated[
    list[str] | None,
    typer.Option("--prompt-ids", metavar="1,2,3", help="A prompt as token ids; needs no tokenizer."),
]
Chat = Annotated[
    bool | None,
    typer.Option("--chat/--no-chat", help="Use the chat template. [default: if the tokenizer has one]"),
]
PANEL = "Hydra"


class Cfg(StrEnum):
    """Parts of a composed configuration."""

    job = "job"
    hydra = "hydra"
    all = "all"


class Info(StrEnum):
    """What Hydra tells of itself."""

    all = "all"
    config = "config"
    defaults = "defaults"
    defaults_tree = "defaults-tree"
    plugins = "plugins"
    searchpath = "searchpath"


def _no_config_path(value: str | None) -> None:
    if value is not None:
        raise typer.BadParameter("the shipped configs cannot be replaced; add your own with --config-dir DIR")


def _declared(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OVERRIDES",
            help="Hydra overrides, in any order with flags: conf=llama8b spec=chain kv.tokens_per_block=16",
            autocompletion=completion.overrides,
        ),
    ] = None,
    multirun: Annotated[
        bool,
        typer.Option("--multirun", "-m", help="Run once for each combination: a=1,2 b=x,y.", rich_help_panel=PANEL),
    ] = False,
    cfg: Annotated[
        Cfg | None,
        typer.Option("--cfg", "-c", help="Show the composed config and stop.", rich_help_panel=PANEL),
    ] = None,
    resolve: Annotated[
        bool, typer.Option("--resolve", help="With --cfg: resolve ${…}.", rich_help_panel=PANEL)
    ] = False,
    package: Annotated[
        str | None,
        typer.Option("--package", "-p", help="With --cfg: only this part, as in -p spec.", rich_help_panel=PANEL),
    ] = None,
    info: Annotated[
        Info | None, typer.Option("--info", "-i", help="Show where configs come from.", rich_help_panel=PANEL)
    ] = None,
    config_dir: Annotated[
        Path | None,
        typer.Option(
            "--config-dir",
            "-cd",
            help="A folder of your own files: DIR/conf/mine.yaml is conf=mine.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    config_name: Annotated[
        str, typer.Option("--config-name", "-cn", help="The root file to compose.", rich_help_panel=PANEL)
    ] = "config",
    config_path: Annotated[
        str | None, typer.Option("--config-path", "-cp", hidden=True, callback=_no_config_path)
    ] = None,
) -> None:
    """Carries the declarations; never called."""


def takes_overrides(command: Callable[..., int]) -> Callable[..., None]:
    """Turn `command(flags, overrides, …)`, which returns an exit code, into one that Typer can register.

    The command line gains overrides and Hydra's flags beside the command's own parameters.
    """
    shared = inspect.signature(_declared).parameters
    own = [p for name, p in inspect.signature(command).parameters.items() if name not in ("flags", "overrides")]
    positional = inspect.Parameter.KEYWORD_ONLY

    @wraps(command)
    def registered(**given: object) -> None:
        taken = {field.name: given.pop(field.name) for field in fields(HydraFlags)}
        plain = {name: value.value if isinstance(value, Enum) else value for name, value in taken.items()}
        given.pop("config_path")
        overrides = given.pop("overrides") or []
        if code := command(HydraFlags(**plain), overrides, **given):  # type: ignore[arg-type]
            raise typer.Exit(code)

    parameters = [p.replace(kind=positional) for p in (*shared.values(), *own)]
    registered.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    registered.__annotations__ = {p.name: p.annotation for p in parameters}
    return registered


def no_multirun(flags: HydraFlags) -> None:
    """Refuse -m where only one configuration is looked at."""
    if flags.multirun:
        raise typer.BadParameter("this command looks at one configuration; -m is for commands that run")
