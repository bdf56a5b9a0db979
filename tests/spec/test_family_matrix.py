"""A slice of the matrix for each family of targets: bias, norms of heads, windows of all layers or of some."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from eagle3.nn import attention
from helpers.families import FAMILIES
from helpers.matrix import AXES, Cell, check, cover, expected, run

SLICE = AXES | {
    "shape": ("chain1", "chain3", "chain7", "tree2-3-6", "tree4-4-16", "tree8-2-16", "tree10-6-60"),
    "pair": tuple(FAMILIES),
    "batch": (1, 5),  # the longest prompt among them
    "kv_heads": (2,),
}
CELLS = sorted((Cell(**values) for values in cover(SLICE, 2)), key=lambda cell: cell.pair)  # type: ignore[arg-type]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_family_matrix(cell: Cell) -> None:
    check(cell, run(cell))


def test_each_family_meets_every_value_of_each_axis() -> None:
    assert len(CELLS) == len(set(CELLS)) >= 60
    for name in FAMILIES:
        mine = [cell for cell in CELLS if cell.pair == name]
        assert all({getattr(cell, axis) for cell in mine} == set(SLICE[axis]) for axis in AXES if axis != "pair")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_all_triples_of_values_of_each_family(name: str) -> None:
    cells = [Cell(**values) for values in cover(SLICE | {"pair": (name,)}, 3)]  # type: ignore[arg-type]
    assert len(cells) >= 60
    for cell in cells:
        check(cell, run(cell))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.endswith("near")])
@pytest.mark.parametrize("shape", ["chain7", "tree4-4-16"])
def test_the_slice_accepts(name: str, shape: str) -> None:
    """Short runs and long ones: without them a fault in accepting them would go unseen."""
    seen = {n for i in range(5) for n in expected(shape, name, 2, i)[1]}
    assert len(seen) >= 4
    assert max(seen) >= 3


def no_window(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """The window is passed over by one of the two ops, as if all were visible."""

    def patch(patcher: pytest.MonkeyPatch) -> None:
        sound = getattr(attention, name)
        at = {"tree_attention": 8, "prompt_attention": 7}[name]
        patcher.setattr(attention, name, lambda *a, **more: sound(*a[:at], None, *a[at + 1 :], **more))

    return patch


def no_window_in_the_tail(patcher: pytest.MonkeyPatch) -> None:
    """Every node stands where its root does: too close to be hidden from another."""
    sound = attention.tree_attention

    def flat(q: Any, kv: Any, kv_lens: Any, table: Any, tail: int, depth: Any, *rest: Any, **more: Any) -> Any:
        return sound(q, kv, kv_lens, table, tail, depth * 0, *rest, **more)

    patcher.setattr(attention, "tree_attention", flat)


def windows_one_too_wide(patcher: pytest.MonkeyPatch) -> None:
    sound = attention.tree_attention

    def wide(*args: Any, **more: Any) -> Any:
        window = args[8]
        return sound(*args[:8], None if window is None else window + 1, *args[9:], **more)

    patcher.setattr(attention, "tree_attention", wide)


def no_norms_of_heads(patcher: pytest.MonkeyPatch) -> None:
    sound = attention.rope_store
    patcher.setattr(attention, "rope_store", lambda *args: sound(*args[:6], None))


TREE = Cell("tree4-4-16", 4, 5, None, "separate", "mistral-random", 2, False)
CHAIN = replace(TREE, shape="chain7")
SOME = replace(TREE, pair="qwen2slides-random")
FAULTS = {
    "no window in a tree's step": (no_window("tree_attention"), TREE),
    "no window in a chain's step": (no_window("tree_attention"), CHAIN),
    "no window in prompts": (no_window("prompt_attention"), TREE),
    "no window in the tail of a tree": (no_window_in_the_tail, TREE),
    "no window in the tail of a chain": (no_window_in_the_tail, CHAIN),
    "no window in the tail, some layers": (no_window_in_the_tail, SOME),
    "windows one too wide": (windows_one_too_wide, TREE),
    "windows one too wide, some layers": (windows_one_too_wide, SOME),
    "no norms of heads": (no_norms_of_heads, replace(TREE, pair="qwen3-random")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_slice_sees(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, cell = FAULTS[fault]
    check(cell, run(cell))
    patch(monkeypatch)
    with pytest.raises(AssertionError, match=r"says other tokens|accepts otherwise"):
        check(cell, run(cell))
