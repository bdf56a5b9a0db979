"""What may stand on a command line: groups with their choices, keys with their values."""

import types
from enum import Enum
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

from omegaconf import MISSING

from eagle3.config.schema import EngineConfig
from eagle3.config.session import defaults, shipped
from eagle3.config.typed import LEAVES, section_of


def completions(word: str, config_dir: Path | None = None) -> list[str]:
    """Overrides that begin with `word`: names, then where one is left, or after its `=`, its values.

    Of a sweep's values the last is completed, as in spec=chain,tr.
    """
    key, equals, value = word.partition("=")
    if equals:
        begun = f"{key}={value[: value.rfind(',') + 1]}"
        return [whole for known in values(key, config_dir) if (whole := begun + known).startswith(word)]
    names = [f"{leaf}=" for leaf in LEAVES]
    if "." not in word:
        names = [f"{group}=" for group in choices(config_dir)] + sorted({f"{leaf.split('.')[0]}." for leaf in LEAVES})
    found = [name for name in names if name.startswith(word)]
    if len(found) != 1:
        return found
    more = completions(found[0], config_dir) if found[0].endswith("=") else []
    return more if len(more) > 1 else found + more  # a single one would end the word


def choices(config_dir: Path | None = None) -> dict[str, list[str]]:
    """The files of each group, the user's among them: engines first, recipes second."""
    groups: dict[str, set[str]] = {"conf": set(), "recipe": {path.stem for path in shipped("recipes").glob("*.yaml")}}
    for folder in (shipped("conf"), config_dir):
        for path in sorted(folder.glob("*/*.yaml")) if folder else ():
            groups.setdefault(path.parent.name, set()).add(path.stem)
    return {group: sorted(names) for group, names in groups.items()}


def values(key: str, config_dir: Path | None = None) -> list[str]:
    """A group's choices; of another key all that it may be, or what it is by itself."""
    if names := choices(config_dir).get(key):
        return names
    if key not in LEAVES:
        return []
    section: type = EngineConfig
    default = defaults(section)
    *parents, leaf = key.split(".")
    for name in parents:
        inner = section_of(get_type_hints(section)[name])
        assert inner is not None
        section, default = inner, default.get(name) or defaults(inner)
    hint = get_type_hints(section)[leaf]
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        if isinstance(option, type) and issubclass(option, Enum):
            return [str(member.name) for member in option]
        if option is bool:
            return ["false", "true"]
    value = default[leaf]
    plain = value is None or isinstance(value, int | float)
    return [] if value == MISSING or not plain else ["null" if value is None else str(value)]
