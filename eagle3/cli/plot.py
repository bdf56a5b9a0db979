"""`eagle3 plot`: pictures of training runs and of sweeps."""

from pathlib import Path
from typing import Annotated

import typer

from eagle3.errors import ConfigError, Problem


def plot(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Training runs (train.out), or a sweep's folder.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The picture: .svg, .png or .pdf.")],
) -> None:
    """Draw training runs, or a sweep.

    Training runs: simulated tau and the accuracy of step 1 against training tokens, a line a run, named by its folder.

    A sweep: output tokens a second and tau against what was swept. With two swept keys one is the axis and each
    value of the other a line; dashed lines are plain decoding's, and jobs that failed are left out.

    Examples:

      eagle3 plot heads/a heads/b --out tau.svg

      eagle3 plot multirun/2025-01-31/12-00-00 --out sweep.png
    """
    from eagle3.bench.panels import read
    from eagle3.bench.plots import KINDS, draw

    kind = out.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise _wrong(f"wants a file that ends in {', '.join(f'.{name}' for name in KINDS)}", out)
    panels = read(folders)
    picture = draw(panels, kind)
    try:
        out.write_bytes(picture)
    except OSError as fault:
        raise _wrong(f"cannot be written: {fault.strerror}", out) from fault
    typer.echo(f"{out}: {' and '.join(panel.y for panel in panels)} against {panels[0].x}")


def _wrong(message: str, out: Path) -> ConfigError:
    return ConfigError([Problem("--out", message, str(out), "command line")])
