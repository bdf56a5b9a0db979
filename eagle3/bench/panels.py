"""What plots show of the folders that runs left: heads as they were trained, sweeps by what was swept."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.config.results import Result, settings, swept
from eagle3.errors import ConfigError, Problem

Lines = dict[str, list[tuple[float | str, float]]]  # points by the line's name
DRAWN = {"output_throughput": ("output tokens/s", 0.0), "tau": ("τ, tokens a step", 1.0)}  # and where the axis begins
PLAIN = "plain_output_throughput"


@dataclass(frozen=True)
class Panel:
    """Axes, their labels and lines; without `joined` a line is its points, and `plain` are those of plain decoding."""

    x: str
    y: str
    lines: Lines
    legend: str | None = None  # what the lines' names are values of
    log: bool = False
    joined: bool = True
    bottom: float | None = None  # where the y axis begins; None: below the points, but not below 0
    plain: Lines = field(default_factory=dict)


def read(folders: Sequence[Path]) -> list[Panel]:
    """Panels of training runs, or of sweeps. Raises `ConfigError` for what is neither, or cannot be read."""
    kinds = {_kind(folder) for folder in folders}
    if len(kinds) > 1:
        raise _wrong("training runs and sweeps do not go into one plot", [*map(str, folders)])
    return _training(folders) if kinds == {"log.jsonl"} else _sweep(folders)


def _wrong(message: str, value: object) -> ConfigError:
    return ConfigError([Problem("FOLDER", message, value, "command line")])


def _kind(folder: Path) -> str:
    """The file that tells what a folder is."""
    if (folder / "log.jsonl").is_file():
        return "log.jsonl"
    if any(folder.glob("*/result.json")):
        return "result.json"
    message = "wants a training run's folder, which holds log.jsonl, or a sweep's, which holds …/result.json"
    if (folder / "result.json").is_file():
        message = "is one job of a sweep: name the folder above it"
    elif inside := next(folder.rglob("result.json"), None):
        message = f"is above the folder of a sweep: name that, such as {inside.parent.parent}"
    raise _wrong(message, str(folder))


def _lines_of(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise _wrong(f"cannot be read: {fault}", str(file)) from fault


def _training(folders: Sequence[Path]) -> list[Panel]:
    names = [folder.resolve().name for folder in folders]
    labels = [name if names.count(name) == 1 else str(f) for name, f in zip(names, folders, strict=True)]
    evals = {label: _evals(folder / "log.jsonl") for label, folder in zip(labels, folders, strict=True)}
    what = ("simulated τ, tokens a step", "accuracy of step 1")
    return [
        Panel("training tokens", y, {name: [(e[0], e[i]) for e in run] for name, run in evals.items()}, log=True)
        for i, y in enumerate(what, start=1)
    ]


def _evals(file: Path) -> list[tuple[float, float, float]]:
    """Tokens, τ and accuracy of step 1 at every evaluation of a run."""
    found = []
    for number, line in enumerate(_lines_of(file), start=1):
        try:
            record = json.loads(line)
            if record["kind"] == "eval":
                found.append((float(record["tokens"]), float(record["tau"]), float(record["accuracy"][0])))
        except (ValueError, LookupError, TypeError) as fault:
            raise _wrong(f"line {number} is no record of a training run", str(file)) from fault
    if not found:
        raise _wrong("tells of no evaluation", str(file))
    return found


def _result(file: Path) -> Result:
    """A job's result; one whose command tells no numbers has none."""
    try:
        found: dict[str, Any] = json.loads("\n".join(_lines_of(file)))
        numbers = found.get("numbers") or {}
        told = {name: float(numbers[name]) for name in (*DRAWN, PLAIN) if numbers.get(name) is not None}
        keys, overrides = [*map(str, found.get("swept") or ())], [*map(str, found["overrides"])]
        return {"overrides": overrides, "keys": keys, "valid": found.get("acceptance_valid"), "numbers": told}
    except (ValueError, LookupError, TypeError, AttributeError) as fault:
        raise _wrong("is no result of a sweep's job", str(file)) from fault


def _sweep(folders: Sequence[Path]) -> list[Panel]:
    files = [file for folder in folders for file in sorted(folder.glob("*/result.json"), key=_place)]
    results = [_result(file) for file in files]
    keys = swept(results) or dict.fromkeys(key for result in results for key in result["keys"])  # of one job left
    by_key = {key: [settings(result["overrides"]).get(key, "–") for result in results] for key in keys}
    if not 1 <= len(by_key) <= 2:
        raise _wrong(f"one or two swept keys can be drawn, not {len(by_key)}", [*by_key] or [*map(str, folders)])
    x = max(by_key, key=lambda key: (_numbers(by_key[key]) is not None, len(set(by_key[key]))))
    other = next((key for key in by_key if key != x), None)
    numbers = _numbers(by_key[x])
    jobs = sorted(range(len(results)), key=numbers.__getitem__) if numbers else range(len(results))

    def lines_of(what: str) -> Lines:
        lines: Lines = {}
        for i in jobs:
            if (y := results[i]["numbers"].get(what)) is not None:
                name = by_key[other][i] if other else ""
                lines.setdefault(name, []).append((numbers[i] if numbers else by_key[x][i], y))
        return lines

    panels = []
    for what, (label, bottom) in DRAWN.items():
        lines, plain = lines_of(what), lines_of(PLAIN) if what == "output_throughput" else {}
        forced = what == "tau" and any(result["valid"] is False for result in results)
        if lines:
            y_label, joined = label + " (not valid)" * forced, other is not None
            panels.append(Panel(x, y_label, lines, other, joined=joined, bottom=bottom, plain=plain))
    if not panels:
        raise _wrong("no job tells tokens a second or τ", [*map(str, folders)])
    return panels


def _place(file: Path) -> tuple[int, str]:
    """Job 10 comes after job 9."""
    return len(file.parent.name), file.parent.name


def _numbers(values: Sequence[str]) -> list[float] | None:
    """The values as numbers, None where one is not."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return None
