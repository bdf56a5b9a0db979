"""docs/pitfalls.md: every number once, every row with an answer, and every test that it names there to fail."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "docs" / "pitfalls.md").read_text(encoding="utf-8")
NO_CPU_TEST = {19, 56, 88, 89, 96, 97, 98, 105, 111, 159}
CPU = set(range(1, 160)) - NO_CPU_TEST
NAMED = re.compile(r"`(test_\w+\.py)::(\w+)`")
OUTSIDE = {"gpu", "exhaustive"}  # marks that the default run leaves out

Row = tuple[int, str, str]


def rows(part: str) -> list[Row]:
    """Number, fault and answer of a table's rows."""
    found = []
    for line in part.splitlines():
        if line.startswith("| ") and not line.startswith("| n "):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            assert len(cells) == 3, line
            found.append((int(cells[0].strip("| ")), cells[1], cells[2].strip("| ")))
    return found


FIRST, SECOND = (rows(part) for part in TEXT.split("\n## ")[1:])


@cache
def functions(file: str) -> dict[str, set[str]]:
    """Tests of a file, whose name is no other's, each with its marks and the file's."""
    (path,) = TESTS.rglob(file)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    file_marks = {
        mark
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for mark in re.findall(r"pytest\.mark\.(\w+)", ast.unparse(node.value))
    }
    return {
        node.name: file_marks
        | {mark for how in node.decorator_list for mark in re.findall(r"pytest\.mark\.(\w+)", ast.unparse(how))}
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_number_is_there_once() -> None:
    assert [n for n, _, _ in FIRST] == sorted(CPU)
    assert [n for n, _, _ in SECOND] == sorted(NO_CPU_TEST)


@pytest.mark.parametrize("row", [*FIRST, *SECOND], ids=lambda row: str(row[0]))
def test_a_row_answers(row: Row) -> None:
    number, fault, here = row
    kind, _, rest = here.partition(": ")
    named = NAMED.findall(here)
    assert len(fault) > 20
    assert kind in ("obeyed", "refused", "not applicable", "open")
    assert len(rest) > 20
    assert here.count("::") == len(named), "a test that is not written as `test_file.py::test_name`"
    assert named or kind in ("not applicable", "open"), "obeyed and refused name what would fail"
    for file, test in named:
        assert test in functions(file), f"{file} has no {test}"
        assert number in NO_CPU_TEST or not functions(file)[test] & OUTSIDE, f"{test} is not in the default run"


def test_tests_are_found_with_their_marks() -> None:
    assert "exhaustive" in functions("test_mixed.py")["test_2000_mixed_requests"]
    assert functions("test_finish.py").keys() == {"test_keep", "test_one_run_equals_token_by_token"}
    assert "gpu" in functions("test_gpu_matrix.py")["test_a_slice_of_the_matrix"]
