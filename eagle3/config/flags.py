"""The flags that every command with Hydra overrides takes; free of heavy imports."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HydraFlags:
    """What a Hydra user expects beside overrides; `cfg` and `info` show something instead of running."""

    multirun: bool = False
    cfg: str | None = None  # job | hydra | all
    resolve: bool = False
    package: str | None = None  # the part of `cfg` to show
    info: str | None = None  # all | config | defaults | defaults-tree | plugins | searchpath
    config_dir: Path | None = None  # the user's own files, found before the shipped ones
    config_name: str = "config"
