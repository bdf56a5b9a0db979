"""`eagle3 support`: what is built and what is refused by name."""

import json

import typer

from eagle3.cli.options import Json


def support(json_: Json = False) -> None:
    """Print the support table: what is built, and which keys are refused until it is."""
    from rich.table import Table

    from eagle3.config.support import FEATURES
    from eagle3.config.terminal import console

    if json_:
        rows = [{"feature": f.name, "built": f.built, "keys": list(f.asks), "note": f.note} for f in FEATURES]
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table("feature")
    table.add_column("built", no_wrap=True)
    table.add_column("keys", overflow="fold")
    table.add_column("note", overflow="fold")
    for feature in FEATURES:
        mark = "yes" if feature.built else "not yet"
        table.add_row(feature.name, mark, "\n".join(feature.asks), feature.note)
    console(stderr=False, wrap=True).print(table)
