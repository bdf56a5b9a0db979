"""`eagle3 convert`: write a head in another dialect."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from eagle3.cli.options import Json, no_multirun, takes_overrides
from eagle3.cli.report import print_problems
from eagle3.config.flags import HydraFlags
from eagle3.config.terminal import console


class To(StrEnum):
    """The dialects that a head can be written in."""

    midlayer = "midlayer"
    modelopt = "modelopt"
    speculators = "speculators"


@takes_overrides
def convert(
    flags: HydraFlags,
    overrides: list[str],
    to: Annotated[
        To,
        typer.Option(
            "--to",
            help="midlayer: the official code's, SpecForge's, AngelSlim's. modelopt: NVIDIA's. speculators: Red Hat's.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where it goes: a new or an empty folder.")],
    json_: Json = False,
) -> int:
    """Write an EAGLE-3 head in another dialect: the same tensors bit for bit, the same facts in other words.

    What a dialect has no words for is refused by name. Where a head lists the layers it reads and does not tell
    whether by their outputs or their inputs, name its target's conf, or say draft.layer_ids_convention=output or input.

    Examples:

      eagle3 convert draft.checkpoint=yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --to speculators --out my-head

      eagle3 convert conf=llama8b draft.checkpoint=./head --to modelopt --out ./head-modelopt --json
    """
    from eagle3.config import load

    no_multirun(flags)
    if load.show(flags, overrides):
        return 0
    composed = load.compose(overrides, config_dir=flags.config_dir, config_name=flags.config_name)
    draft, facts = composed.config.draft, composed.config.target.architecture
    if draft.checkpoint is None:
        raise typer.BadParameter("name the head: draft.checkpoint=FOLDER, a hub id or eagle3:NAME")
    print_problems((p for p in composed.warnings if p.key != "draft.checkpoint"), "yellow")
    from eagle3.models.checkpoint import resolve
    from eagle3.models.head_convert import Target, convert_head

    target = Target(facts.hidden_size, facts.vocab_size, facts.num_hidden_layers) if facts else None
    done = convert_head(resolve(draft.checkpoint, revision=draft.revision), to.value, out, draft, target)
    if json_:
        told = {
            "folder": str(done.folder),
            "dialect": done.dialect,
            "tensors": list(done.tensors),
            "layers": None if done.layers is None else list(done.layers),
            "left_out": list(done.left_out),
            "warnings": list(done.warnings),
        }
        typer.echo(json.dumps(told, ensure_ascii=False))
        return 0
    for line in done.warnings:
        console().print(f"warning: {line}")
    if done.left_out:
        console().print(f"left out: {', '.join(done.left_out)}")
    typer.echo(f"{done.folder}: {len(done.tensors)} tensors, {done.dialect}")
    return 0
