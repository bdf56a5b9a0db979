"""`eagle3 show`: print the configuration an engine would be built from."""

import json
import sys
from dataclasses import asdict
from enum import Enum
from typing import Any

import typer

from eagle3.cli.options import Json, no_multirun, takes_overrides
from eagle3.cli.report import print_problems
from eagle3.config.flags import HydraFlags


def _plain(value: object) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.value if isinstance(value, Enum) else value


@takes_overrides
def show(flags: HydraFlags, overrides: list[str], json_: Json = False) -> int:
    """Print the configuration with everything that was left out filled in.

    Use --cfg job for the configuration as Hydra composes it.

    Examples:

      eagle3 show conf=llama8b spec=chain

      eagle3 show --cfg job -p spec conf=llama8b
    """
    from omegaconf import OmegaConf
    from rich.console import Console
    from rich.syntax import Syntax

    from eagle3.config import load

    no_multirun(flags)
    if load.show(flags, overrides):
        return 0
    composed = load.compose(overrides, config_dir=flags.config_dir, config_name=flags.config_name)
    plain = _plain(asdict(composed.config))
    print_problems(composed.warnings, "yellow")
    text = OmegaConf.to_yaml(OmegaConf.create(plain))
    if json_:
        typer.echo(json.dumps(plain, indent=2))
    elif sys.stdout.isatty():
        Console().print(Syntax(text, "yaml", background_color="default"))
    else:
        typer.echo(text, nl=False)
    return 0
