"""Where the project keeps what it can make again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Converted checkpoints and tuned choices: $EAGLE3_CACHE, else eagle3 in the user's XDG cache."""
    if own := os.environ.get("EAGLE3_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "eagle3"
