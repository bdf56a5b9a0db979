"""`eagle3 pull`: fetch the checkpoints of an engine."""

import json

import typer

from eagle3.cli.options import Json, no_multirun, takes_overrides
from eagle3.cli.report import print_problems
from eagle3.config.flags import HydraFlags


@takes_overrides
def pull(flags: HydraFlags, overrides: list[str], json_: Json = False) -> int:
    """Fetch the target's checkpoint, and the draft's if there is one, and print their folders.

    What is there already is not fetched again. An engine pulls what it needs by itself when it first runs.

    Examples:

      eagle3 pull

      eagle3 pull conf=llama8b
    """
    from eagle3.config import load

    no_multirun(flags)
    if load.show(flags, overrides):
        return 0
    composed = load.compose(overrides, config_dir=flags.config_dir, config_name=flags.config_name)
    print_problems(composed.warnings, "yellow")
    from eagle3.models.checkpoint import resolve

    target, draft = composed.config.target, composed.config.draft
    folders = {"target": str(resolve(target.checkpoint, revision=target.revision, sha256=target.sha256))}
    if draft.checkpoint is not None:
        folders["draft"] = str(resolve(draft.checkpoint, revision=draft.revision))
    typer.echo(json.dumps(folders, ensure_ascii=False) if json_ else "\n".join(folders.values()))
    return 0
