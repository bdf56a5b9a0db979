"""Whose data a folder holds: answers of one target are no training data for another's head."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3.build.target import target_facts
from eagle3.config.files import write_whole
from eagle3.config.schema import TargetConfig
from eagle3.errors import Eagle3Error

# what text becomes token ids by, the chat template included
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
)


def target_mark(target: TargetConfig) -> dict[str, Any]:
    """What tells a target from others: its checkpoint as the configuration names it, and its text side by hash."""
    folder, facts = target_facts(target)
    return {
        "checkpoint": target.checkpoint,
        "revision": target.revision,
        "sha256": target.sha256,
        "tokenizer": None if folder is None else tokenizer_hash(folder),
        "vocab_size": facts.vocab,
    }


def tokenizer_hash(folder: Path) -> str | None:
    """sha256 over the files that turn text into ids; None where there are none."""
    digest, found = hashlib.sha256(), False
    for name in TEXT_FILES:
        if (folder / name).is_file():
            digest.update(f"{name}\n".encode() + hashlib.sha256((folder / name).read_bytes()).digest())
            found = True
    return digest.hexdigest() if found else None


def claim(folder: Path, target: Mapping[str, Any]) -> None:
    """Make `folder` the data of `target`, of which the fields say which it is.

    Raises Eagle3Error where it holds another target's, or files that are none of ours.
    """
    path = folder / "parts" / "target.json"
    mine = json.dumps(target, indent=2, sort_keys=True) + "\n"
    try:
        if path.is_file():
            if (there := path.read_text(encoding="utf-8")) != mine:
                raise Eagle3Error(f"{folder}: holds data of another target{_difference(there, target)}")
            return
        if folder.exists() and any(entry != path.parent for entry in folder.iterdir()):
            raise Eagle3Error(f"{folder}: is not empty and holds no data of ours: name another folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, mine)
    except OSError as fault:
        raise Eagle3Error(f"{folder}: {fault.strerror or fault}") from fault


def _difference(there: str, target: Mapping[str, Any]) -> str:
    """Which fields differ."""
    try:
        other = json.loads(there)
        return ": " + "; ".join(f"{k} {other.get(k)}, here {v}" for k, v in target.items() if other.get(k) != v)
    except (ValueError, AttributeError):
        return ""
