"""Speculative output is plain output in every mode, and every step accepts what the slow oracle says."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3.ops.grow import Grown
from eagle3.ops.loop_rows import LoopRows
from eagle3.spec import accept, drafter, worker
from eagle3.spec.drafter import Drafter
from eagle3.spec.rows import Rows
from eagle3.spec.slots import TreeSlots
from helpers.matrix import AXES, SHAPES, Cell, all_cells, cells, check, combos, cover, expected, run

CELLS = cells(256)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_matrix(cell: Cell) -> None:
    check(cell, run(cell))


@pytest.mark.exhaustive
@pytest.mark.parametrize("cell", all_cells(), ids=str)
def test_full_product(cell: Cell) -> None:
    check(cell, run(cell))


def test_cells_cover_all_pairs_and_triples() -> None:
    assert len(CELLS) == len(set(CELLS)) >= 250
    for strength in (2, 3):
        wanted = 0
        for names in combinations(AXES, strength):
            n = 1
            for name in names:
                n *= len(AXES[name])
            wanted += n
        assert len(set().union(*(combos(vars(c), strength) for c in CELLS))) == wanted


def test_cover_is_small_and_the_same_each_time() -> None:
    pairs = list(cover(AXES, 2))
    assert pairs == list(cover(AXES, 2))
    assert 36 <= len(pairs) <= 60  # the two largest axes have 9 · 4 pairs of values


@pytest.mark.parametrize("shape", SHAPES)
def test_the_matrix_accepts(shape: str) -> None:
    """Without runs of every length a fault in accepting them would go unseen."""
    seen = Counter(n for kv in (2, 4) for i in range(7) for n in expected(shape, "near", kv, i)[1])
    assert set(range(min(SHAPES[shape].depth, 3) + 1)) <= set(seen)


TREE = Cell("tree4-4-16", 4, 7, None, "separate", "near", 2, False)
CHAIN = replace(TREE, shape="chain3")
RANDOM = replace(TREE, pair="random")
WIDE = replace(RANDOM, shape="tree8-2-16", kv_heads=4)


def broken_rows(name: str, change: Callable[[Rows], Rows]) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(patcher: pytest.MonkeyPatch) -> None:
        sound: Callable[..., Rows] = getattr(worker, name)
        patcher.setattr(worker, name, lambda *a: change(sound(*a)))

    return patch


def no_relocation(patcher: pytest.MonkeyPatch) -> None:
    patcher.setattr(worker, "relocate_kv", lambda *_: None)


def siblings_seen(patcher: pytest.MonkeyPatch) -> None:
    sound = worker.tree_rows

    def all_ones(*args: Any) -> Any:
        ids, positions, meta = sound(*args)
        mask = None if meta.mask is None else torch.full_like(meta.mask, -1)
        return ids, positions, replace(meta, mask=mask)

    patcher.setattr(worker, "tree_rows", all_ones)


def positions_by_node(patcher: pytest.MonkeyPatch) -> None:
    sound = worker.tree_rows

    def flat(state: Any, *args: Any) -> Any:
        ids, _, meta = sound(state, *args)
        nodes = state.tree.tokens.shape[1]
        return ids, (state.length[:, None] + torch.arange(nodes)).flatten(), meta

    patcher.setattr(worker, "tree_rows", flat)


def draft_siblings_seen(patcher: pytest.MonkeyPatch) -> None:
    sound = drafter.start

    def all_ones(*args: Any) -> Grown:
        nodes = sound(*args)
        assert nodes.mask is not None
        return nodes._replace(mask=torch.full_like(nodes.mask, -1))  # which all descendants inherit

    patcher.setattr(drafter, "start", all_ones)


def stale_root(patcher: pytest.MonkeyPatch) -> None:
    sound = TreeSlots.write

    def keep_root(self: TreeSlots, ids: Tensor, keep: Tensor, tree: Any, *args: Any, **more: Any) -> None:
        before = self.tree.tokens[ids, 0].clone()
        sound(self, ids, keep, tree, *args, **more)
        self.tree.tokens[ids, 0] = torch.where(self.has_tree[ids] & (before > 0), before, tree.tokens[:, 0])

    patcher.setattr(TreeSlots, "write", keep_root)


def stale_feedback(patcher: pytest.MonkeyPatch) -> None:
    sound = Drafter.feed

    def unfed(self: Drafter, rows: Rows, loop: LoopRows, nodes: Grown, step: int) -> Any:
        out, _ = sound(self, rows, loop, nodes, step)
        assert nodes.feedback is not None
        return out, nodes.feedback.flatten(0, 1)

    patcher.setattr(Drafter, "feed", unfed)


def draft_entries_too_far(patcher: pytest.MonkeyPatch) -> None:
    sound = drafter.loop_rows
    patcher.setattr(drafter, "loop_rows", lambda length, *rest: sound(length + 1, *rest))


def late_noise(patcher: pytest.MonkeyPatch) -> None:
    sound = accept._index
    patcher.setattr(accept, "_index", lambda state: sound(state) + 1)


FAULTS = {
    "relocation skipped": (no_relocation, RANDOM),
    "siblings see each other": (siblings_seen, RANDOM),
    "positions by node, not by depth": (positions_by_node, RANDOM),
    "draft siblings see each other": (draft_siblings_seen, WIDE),
    "stale root": (stale_root, CHAIN),
    "feature not fed back": (stale_feedback, CHAIN),
    "draft entries one too far": (draft_entries_too_far, WIDE),
    "noise of the next token": (late_noise, CHAIN),
    "no shift in the path": (broken_rows("path_rows", lambda r: replace(r, ids=r.ids.roll(1))), CHAIN),
    "no shift in the prompt": (broken_rows("context_rows", lambda r: replace(r, ids=r.ids.roll(1))), CHAIN),
    "features of the wrong nodes": (
        broken_rows("path_rows", lambda r: replace(r, captured=r.captured.roll(1, 0))),
        TREE,
    ),
    "draft positions one behind": (
        broken_rows("path_rows", lambda r: replace(r, positions=(r.positions - 1).clamp(min=0))),
        TREE,
    ),
    "last row instead of the accepted": (
        broken_rows("path_rows", lambda r: replace(r, last=torch.full_like(r.last, len(r.ids) - 1))),
        TREE,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_matrix_sees(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, cell = FAULTS[fault]
    check(cell, run(cell))
    patch(monkeypatch)
    with pytest.raises(AssertionError, match=r"says other tokens|accepts otherwise"):
        check(cell, run(cell))
