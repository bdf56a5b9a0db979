"""Rows, positions, entries and lengths of a step, on worked examples: past 10 and 20, page 4."""

from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3.config.shape import DraftShape, default_capture
from eagle3.kv.meta import TreeMeta
from eagle3.ops import path_rows as ops
from eagle3.ops.slot_rows import Placed
from eagle3.spec.batch import Accepted, Draws, Generations
from eagle3.spec.drafter import Drafter
from eagle3.spec.rows import Rows, path_rows
from eagle3.spec.slots import SlotState, TreeSlots
from eagle3.spec.tree import chain, kary
from eagle3.spec.worker import tree_rows
from helpers.pairs import LAYERS, engine, random_pair

CPU = torch.device("cpu")
PAGE = 4
# block tables that are no identity: entry e of a request is entry flat(g, e) of the pool
TABLE = torch.arange(1, 25).view(2, 12).flip(1).int()


def flat(g: int, entry: int) -> int:
    return int(TABLE[g, entry // PAGE]) * PAGE + entry % PAGE


def read(shape: DraftShape) -> tuple[SlotState, Placed]:
    """Slots 1 and 2 of four: a chain or a K-ary tree past 10 and past 20."""
    slots, ids = TreeSlots(4, shape, CPU), torch.tensor([1, 2])
    tree = chain(2, shape.nodes, CPU) if shape.top_k == 1 else kary(shape.nodes, shape.top_k, CPU)
    tree = type(tree)(*(t.expand(2, *t.shape[1:]) for t in tree.tensors()))
    slots.write(ids, torch.tensor([True, True]), tree, torch.tensor([10, 20]), has_tree=True, probs=None)
    return slots.read(ids, TABLE, PAGE)


def first_rows(shape: DraftShape, counts: list[int], nodes: list[list[int]]) -> Rows:
    tokens = torch.arange(2 * shape.path).view(2, -1) + 100
    accepted = Accepted(tokens, torch.tensor(counts), torch.tensor(nodes))
    batch = Generations(torch.tensor([0, 1]), (TABLE, TABLE), Draws(True, False))
    state, captured = read(shape)[0], torch.arange(2 * shape.nodes).view(2, -1, 1).double()  # row r holds r
    given = (tokens, accepted.counts, accepted.nodes, state.length, batch.slots)
    return path_rows(batch, state, tokens, ops.path_rows(*given, 9, TABLE, PAGE, captured))


class Loop:
    """A head that writes down what it is fed."""

    dtype, hidden, draft_vocab, scale = torch.float64, 3, 8, 1.0

    def __init__(self) -> None:
        self.metas: list[TreeMeta] = []
        self.positions: list[list[int]] = []
        self.ids: list[list[int]] = []

    def fuse(self, captured: Tensor) -> Tensor:
        return captured.expand(-1, self.hidden)

    def forward(self, ids: Tensor, features: Tensor, positions: Tensor, cores: Any) -> tuple[Tensor, Tensor]:
        self.metas.append(cores.meta)
        self.positions.append(positions.tolist())
        self.ids.append(ids.tolist())
        return features, features

    def logits(self, out: Tensor) -> Tensor:
        return -torch.arange(8.0).expand(len(out), -1)

    d2t = None


class Pool:
    page, groups = PAGE, (torch.zeros(1),)


def grown(shape: DraftShape, rows: Rows) -> Loop:
    loop = Loop()
    Drafter(loop, Pool(), 0, shape).draft(rows)  # type: ignore[arg-type]
    return loop


def test_verified_rows() -> None:
    shape = DraftShape(depth=2, top_k=2, nodes=5)
    _, positions, meta = tree_rows(*read(shape), TABLE)
    assert positions.tolist() == [10, 11, 11, 12, 12, 20, 21, 21, 22, 22]
    assert meta.write_at.tolist() == [flat(g, e) for g, past in ((0, 10), (1, 20)) for e in range(past, past + 5)]
    assert meta.kv_lens.tolist() == [15, 25]
    assert meta.tail == 5


def test_chain() -> None:
    """Three drafts, of which one and all three are accepted."""
    shape = DraftShape(depth=3, top_k=1, nodes=4)
    rows = first_rows(shape, [2, 4], [[1, -1, -1], [1, 2, 3]])
    assert rows.last.tolist() == [1, 7]
    assert rows.length.tolist() == [12, 24]
    assert rows.root.tolist() == [101, 107]
    assert rows.captured[:, 0].tolist() == [0, 1, 0, 0, 4, 5, 6, 7]
    assert rows.positions.tolist() == [10, 11, 12, 13, 20, 21, 22, 23]
    loop = grown(shape, rows)
    assert [m.kv_lens.tolist() for m in loop.metas] == [[14, 24], [13, 25], [14, 26]]
    assert [m.tail for m in loop.metas] == [4, 1, 2]
    assert loop.positions[1:] == [[12, 24], [13, 25]]
    assert [m.write_at.tolist() for m in loop.metas[1:]] == [[flat(0, 12), flat(1, 24)], [flat(0, 13), flat(1, 25)]]
    assert all(m.mask is None for m in loop.metas)


def test_tree() -> None:
    """Nodes 2 and 4 accepted, and none."""
    shape = DraftShape(depth=2, top_k=2, nodes=5)
    rows = first_rows(shape, [3, 1], [[2, 4], [-1, -1]])
    assert rows.captured[:, 0].tolist() == [0, 2, 4, 5, 5, 5]
    assert rows.last.tolist() == [2, 3]
    assert rows.meta.write_at.tolist() == [flat(0, e) for e in (10, 11, 12)] + [flat(1, e) for e in (20, 21, 22)]
    loop = grown(shape, rows)
    assert [m.kv_lens.tolist() for m in loop.metas] == [[13, 23], [15, 23]]
    layer = loop.metas[1]
    assert layer.write_at.tolist() == [flat(0, 13), flat(0, 14), flat(1, 21), flat(1, 22)]
    assert loop.positions[1] == [13, 13, 21, 21]
    assert layer.mask is not None
    assert layer.mask[:, :, 0].tolist() == [[1, 2]] * 2


def test_masks_of_the_loop_grow() -> None:
    """K = 2; all scores are flat but for the first child, so both nodes of a depth hang below the first."""
    shape = DraftShape(depth=4, top_k=2, nodes=9)
    loop = grown(shape, first_rows(shape, [1, 1], [[-1] * 4] * 2))
    masks = [m.mask[0, :, 0].tolist() for m in loop.metas[1:] if m.mask is not None]
    # e^-1 a rank: the root's children a, b; aa, then ab before ba (an equal score, the lower index)
    assert masks == [[1, 2], [5, 9], [21, 37]]
    assert [m.tail for m in loop.metas] == [5, 2, 4, 6]
    assert [m.depth[0].tolist() for m in loop.metas[1:]] == [[0, 0], [0, 0, 1, 1], [0, 0, 1, 1, 2, 2]]
    assert loop.positions[1:] == [[11, 11, 21, 21], [12, 12, 22, 22], [13, 13, 23, 23]]


def test_rows_fed_are_k_a_step() -> None:
    shape = DraftShape(depth=6, top_k=2, nodes=13)
    loop = grown(shape, first_rows(shape, [1, 1], [[-1] * 6] * 2))
    assert [len(ids) for ids in loop.ids] == [14] + [4] * 5


@pytest.mark.parametrize(
    ("K", "D", "history", "loop"), [(10, 6, 510, 50), (8, 6, 328, 40), (10, 3, 210, 20), (4, 4, 52, 12), (2, 3, 10, 4)]
)
def test_sizes(K: int, D: int, history: int, loop: int) -> None:
    shape = DraftShape(depth=D, top_k=K, nodes=K * D + 1)
    assert (shape.history, shape.loop) == (history, loop)


@pytest.mark.parametrize(
    ("layers", "ids"), [(1, (0,)), (7, (1, 2, 3)), (28, (1, 13, 24)), (32, (1, 15, 28)), (80, (1, 39, 76))]
)
def test_default_capture(layers: int, ids: tuple[int, ...]) -> None:
    assert default_capture(layers) == ids


def test_relocation_moves_the_accepted_nodes_next_to_the_root() -> None:
    """After FULL's steps the pool holds at entry e what a plain run holds there, in every layer."""
    target, head = random_pair(8, hidden=16)
    drafted = engine(target, (head, LAYERS), DraftShape(1, 8, 9), batch=1, max_seq_len=32)
    plain = engine(target, batch=1, max_seq_len=32)
    held = []
    for e in (plain, drafted):
        e.add([1, 2, 3], max_new_tokens=11)
        table: list[int] = []
        while not e.idle:
            if e.scheduler.running:
                table = list(e.scheduler.running[0].pages[0])
            e.step()
        kv = e.runner.worker.pool.groups[0]
        entries = torch.tensor([table[i // 4] * 4 + i % 4 for i in range(3 + 8)])
        held.append(kv.flatten(1, 2)[:, entries])
    assert held[0].abs().sum() > 0
    torch.testing.assert_close(held[1], held[0])
