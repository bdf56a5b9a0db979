"""Where the project keeps what it can make again, and how its files are written."""

import os
from contextlib import suppress
from pathlib import Path


def cache_folder() -> Path:
    """Converted checkpoints and tuned choices: $EAGLE3_CACHE, else eagle3 in the user's XDG cache."""
    if own := os.environ.get("EAGLE3_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "eagle3"


def write_whole(file: Path, text: str) -> None:
    """Write a file whole or not at all; OSError where the disk refuses, and the file is as it was."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise
