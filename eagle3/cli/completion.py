"""Overrides in the shell's completion."""

import os
from pathlib import Path

import typer


def overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """What `incomplete` may become. Bash cuts words at `=` and wants the piece after it alone."""
    from eagle3.config.completion import completions

    before, word = ctx.params.get("overrides") or [], incomplete
    if before and not incomplete and _at_equals():
        word = f"{before[-1]}="
    elif before[1:] and before[-1] == "=":
        word = f"{before[-2]}={incomplete}"
    own = ctx.params.get("config_dir")
    found = completions(word, Path(own) if own and Path(own).is_dir() else None)
    return [whole[len(word) - len(incomplete) :] for whole in found]


def _at_equals() -> bool:
    """Whether Bash stands right behind an `=`, which arrives here as an empty word."""
    words, at = os.environ.get("COMP_WORDS", "").split("\n"), os.environ.get("COMP_CWORD", "")
    return at.isdecimal() and words[int(at) : int(at) + 1] == ["="]
