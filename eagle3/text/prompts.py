"""Prompts from a file or stdin: text, one a line, or JSON lines with sampling of their own."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from eagle3.config.support import FEATURES
from eagle3.errors import ConfigError, Problem

KINDS = ("prompt", "messages", "prompt_ids")


@dataclass(frozen=True)
class Prompt:
    """One prompt: exactly one of text, messages and ids is set; `sampling` is what it asks for itself."""

    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None  # each with role and content
    ids: tuple[int, ...] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    origin: str | None = field(default=None, compare=False)  # "questions.jsonl:2"; None: no file


def read_prompts(source: str | Path) -> list[Prompt]:
    """The prompts of a .jsonl file, of any other file (one a line, blank lines apart), or of stdin ('-').

    Stdin is taken as JSON lines if each of its lines begins with '{'. Raises ConfigError with all bad lines.
    """
    prompts, problems = scan_prompts(source)
    if problems:
        raise ConfigError(problems)
    return prompts


def scan_prompts(source: str | Path) -> tuple[list[Prompt], list[Problem]]:
    """As `read_prompts`: the prompts of the good lines, and all bad lines. Raises ConfigError for a file as a whole."""
    name = "stdin" if str(source) == "-" else str(source)
    text = _read(source, name)
    # only the line feed ends a line: JSON strings may hold the other signs that str.splitlines splits at
    lines = [(n, line.strip("\r")) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ConfigError([Problem(name, "has no prompts", "", "the prompt file")])
    as_json = (
        all(line.lstrip().startswith("{") for _, line in lines)
        if name == "stdin"
        else Path(source).suffix.lower() == ".jsonl"
    )
    if not as_json:
        return [Prompt(text=line, origin=f"{name}:{n}") for n, line in lines], []
    prompts: list[Prompt] = []
    problems: list[Problem] = []
    for n, line in lines:
        found = parse_line(line)
        if isinstance(found, Prompt):
            prompts.append(replace(found, origin=f"{name}:{n}"))
        else:
            problems += [Problem(f"{name}:{n}", message, _cut(line), "the prompt file") for message in found]
    return prompts, problems


def parse_line(line: str) -> Prompt | list[str]:
    """The prompt that a JSON line holds, or all that is wrong with it."""
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as fault:
        return [f"is not JSON: {fault}"]
    if not isinstance(row, dict):
        return [f"wants a JSON object, got {_show(row)}"]
    problems = list(_problems(row))
    if problems:
        return problems
    messages, ids = row.get("messages"), row.get("prompt_ids")
    return Prompt(
        text=row.get("prompt"),
        messages=None if messages is None else tuple(messages),
        ids=None if ids is None else tuple(ids),
        sampling={key: value for key, value in row.items() if key not in KINDS},
    )


def _problems(row: Mapping[str, Any]) -> Iterator[str]:
    given = [key for key in KINDS if key in row]
    if len(given) != 1:
        yield f"wants exactly one of {', '.join(KINDS)}, got {' and '.join(given) or 'none'}"
    for key, value in row.items():
        if key in UNBUILT:
            continue
        if key not in CHECKS:
            near = get_close_matches(key, CHECKS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(CHECKS)}"
            yield f"unknown key {key!r}; {hint}"
            continue
        right, wanted = CHECKS[key]
        if not right(value):
            yield f"{key} wants {wanted}, got {_show(value)}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_int(value)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_int, value))


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_messages(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(
            isinstance(message, dict)
            and message.keys() == {"role", "content"}
            and all(isinstance(part, str) for part in message.values())
            for message in value
        )
    )


# JSON types only; ranges are checked with the sampling they become part of
CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    "prompt": (lambda value: isinstance(value, str), "a string"),
    "messages": (_is_messages, 'a list of {"role": string, "content": string}'),
    "prompt_ids": (lambda value: _is_ids(value) and value != [], "a list of token ids"),
    "max_new_tokens": (_is_int, "an integer"),
    "temperature": (_is_number, "a number"),
    "top_k": (lambda value: value is None or _is_int(value), "an integer or null"),
    "top_p": (_is_number, "a number"),
    "min_p": (_is_number, "a number"),
    "seed": (_is_int, "an integer"),
    "stop_token_ids": (_is_ids, "a list of token ids"),
    "min_new_tokens": (_is_int, "an integer"),
    "presence_penalty": (_is_number, "a number"),
    "frequency_penalty": (_is_number, "a number"),
    "repetition_penalty": (_is_number, "a number"),
    "logprobs": (lambda value: value is None or _is_int(value), "an integer or null"),
    "stop": (lambda value: value is None or _is_texts(value), "a list of strings or null"),
    "ignore_eos": (lambda value: isinstance(value, bool), "true or false"),
}


# judged with the sampling that they become part of, which refuses by name what they ask for
UNBUILT = frozenset(
    key.removeprefix("sampling.")
    for feature in FEATURES
    if not feature.built
    for key in feature.asks
    if key.startswith("sampling.")
)


def _read(source: str | Path, name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "stdin" else Path(source).expanduser().read_bytes()
    except (OSError, RuntimeError, ValueError) as fault:  # no such user in ~user, a NUL in the name
        reason = getattr(fault, "strerror", None) or fault
        raise ConfigError([Problem(name, f"cannot be read: {reason}", origin="--prompt-file")]) from fault
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise ConfigError(
            [Problem(f"{name}:{line}", f"is not UTF-8: {fault.reason}", origin="the prompt file")]
        ) from fault


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _show(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
