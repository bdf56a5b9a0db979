"""Overrides looked at one by one, before Hydra sees them together and stops at its first fault."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from difflib import get_close_matches

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.conf import HydraConf
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from eagle3.config.origins import leaves
from eagle3.config.session import folder_with
from eagle3.config.typed import OPEN, is_known, unknown
from eagle3.errors import Problem

HYDRA_KEYS = frozenset(field.name for field in fields(HydraConf))


def parse(texts: Sequence[str], loader: ConfigLoaderImpl | None = None) -> tuple[list[Override], list[Problem]]:
    """The overrides that can be read, and a problem for each that cannot. `loader` knows what a glob() stands for."""
    parser, parsed, problems = OverridesParser.create(config_loader=loader), [], []
    for text in texts:
        try:
            parsed.extend(parser.parse_overrides([text]))
        except HydraException as error:
            key = text.split("=")[0].lstrip("+~")
            message = f"cannot be read: {str(error).splitlines()[0]}; quote values that hold any of , = {{ }} ( )"
            problems.append(Problem(key, message, text, f"override {text}"))
    return parsed, problems


def written(key: str, value: object) -> str:
    """The override that sets `key` to `value`, whatever signs are in its texts."""
    return f"{key}={_written(value)}"


def _written(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    if not isinstance(value, str):
        return str(value).lower()
    # a backslash counts as such but before a quote, the end, and ${, which OmegaConf would resolve
    text = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", value)
    text = re.sub(r"(\\*)'", lambda found: found[1] * 2 + r"\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", text) + "'"


def picks_file(loader: ConfigLoaderImpl, override: Override) -> bool:
    """Whether an override chooses among the files of a group, rather than set a value."""
    one = override.is_sweep_override() or not isinstance(override.value(), dict)
    return one and bool(loader.repository.group_exists(override.key_or_group))


def _wrong_choices(loader: ConfigLoaderImpl, override: Override, values: Sequence[object]) -> Iterator[Problem]:
    group = override.key_or_group
    options = loader.repository.get_group_options(group, ObjectType.CONFIG)
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    for name in names:
        if str(name) in options:
            continue
        close = get_close_matches(str(name), options, n=1)
        guess = f"; did you mean {close[0]}?" if close else ""
        if folder := folder_with(group, str(name)):
            guess = f"; --config-dir {folder} would bring it"
        message = f"must be one of {', '.join(options)}{guess}"
        yield Problem(group, message, name, f"override {override.input_line}")


def _wrong_key(override: Override) -> Problem | None:
    key, origin = override.key_or_group, f"override {override.input_line}"
    value = None if override.is_sweep_override() else override.value()
    if key.startswith("hydra."):
        name = key.split(".")[1]
        if name in HYDRA_KEYS or override.is_add() or override.is_force_add():
            return None
        close = get_close_matches(name, HYDRA_KEYS, n=1)
        guess = f"; did you mean hydra.{close[0]}?" if close else ""
        return Problem(key, f"unknown key of Hydra{guess}", value, origin)
    if override.is_delete():
        return Problem(key, "cannot be deleted; set it to null or to its default", None, origin)
    if not is_known(key):
        return unknown(key, value, origin)
    strange = [leaf for leaf in leaves(value, key) if not is_known(leaf)]
    if strange:
        return unknown(strange[0], value, origin)
    if override.is_add() and not any(key.startswith(name + ".") for name in OPEN):
        return Problem(key, f"is known and needs no +; write {key}=…", value, origin)
    return None


def admit(loader: ConfigLoaderImpl, overrides: Sequence[Override], sweep: bool) -> tuple[list[Override], list[Problem]]:
    """The overrides that make sense on their own, and the problems of the others."""
    kept: list[Override] = []
    problems: list[Problem] = []
    for override in overrides:
        found: list[Problem] = []
        swept = override.is_sweep_override()
        if swept and not sweep:
            message = "several values need -m (--multirun); a list is written [a,b], a text with commas 'a,b'"
            value = override.get_value_string()
            found = [Problem(override.key_or_group, message, value, f"override {override.input_line}")]
        elif swept and not override.is_interval_sweep() and not list(override.sweep_string_iterator()):
            message, value = "gives no value to sweep", override.get_value_string()
            found = [Problem(override.key_or_group, message, value, f"override {override.input_line}")]
        elif picks_file(loader, override):
            if not override.is_delete() and not override.is_interval_sweep():
                values = list(override.sweep_string_iterator()) if swept else [override.value()]
                found = list(_wrong_choices(loader, override, values))
        elif problem := _wrong_key(override):
            found = [problem]
        problems += found
        if not found:
            kept.append(override)
    return kept, problems


def forced(loader: ConfigLoaderImpl, override: Override, everywhere: bool) -> str:
    """The override's text for Hydra, which wants a + for new keys: of open dicts, of facts that a file leaves out."""
    text, key = str(override.input_line), override.key_or_group
    plain = not (override.is_add() or override.is_force_add() or override.is_delete())
    inside = any(key.startswith(name + ".") for name in (*OPEN, "target.architecture", "draft.architecture"))
    if plain and not key.startswith("hydra") and not picks_file(loader, override) and (everywhere or inside):
        return f"++{text}"
    return text
