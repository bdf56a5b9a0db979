"""`eagle3 list`: what there is to choose from."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from eagle3.cli.options import Json
from eagle3.config.terminal import console

TITLES = {"conf": "engines", "recipe": "recipes"}


def list_(
    json_: Json = False,
    config_dir: Annotated[
        Path | None, typer.Option("--config-dir", "-cd", help="List the files of your own folder too.")
    ] = None,
) -> None:
    """List engines, the choices of each group, and recipes, with a line on each.

    Used as GROUP=NAME: conf=llama8b is a whole engine, spec=chain one part of it, recipe=… an experiment.
    """
    from eagle3.config.catalogue import catalogue

    entries = catalogue(config_dir)
    if json_:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2, ensure_ascii=False))
        return
    out, group = console(stderr=False), None
    width = max(len(f"{entry.group}={entry.name}") for entry in entries)
    for entry in entries:
        if entry.group != group:
            group = entry.group
            out.print(TITLES.get(group, group), style="bold")
        out.print(f"  {f'{entry.group}={entry.name}':<{width}}  {entry.about}")
