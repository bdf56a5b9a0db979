import pytest
import torch
from torch import Tensor

from eagle3.ops.slot_rows import (
    NewTree,
    SlotRows,
    read_slots_torch,
    read_slots_triton,
    write_slots_torch,
    write_slots_triton,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = [1, 4, 33, 70]  # nodes: words of one, two and three
I32 = {"device": DEVICE, "dtype": torch.int32}


def random_tree(rows: int, nodes: int) -> NewTree:
    words = -(-nodes // 32)
    depth, child, sibling = torch.randint(-1, nodes, (3, rows, nodes), **I32)
    mask = torch.randint(-(2**31), 2**31 - 1, (rows, nodes, words), **I32)
    return torch.randint(0, 1 << 40, (rows, nodes), device=DEVICE), depth.abs(), mask, child, sibling


def random_slots(rows: int, nodes: int) -> SlotRows:
    length = torch.randint(0, 30, (rows,), device=DEVICE)
    flag = torch.randint(0, 2, (rows,), device=DEVICE).bool()
    temperature, top_p, min_p = torch.rand(3, rows, device=DEVICE)
    top_k, seed = torch.randint(0, 9, (rows,), **I32), torch.randint(-(2**62), 2**62, (rows,), device=DEVICE)
    return SlotRows(*random_tree(rows, nodes), flag, length, temperature, top_k, top_p, min_p, seed)


def copy(slots: SlotRows) -> SlotRows:
    return SlotRows(*(t.clone() for t in slots))


def test_worked_example() -> None:
    slots = random_slots(3, 4)
    slots.length[2], slots.depth[2] = 6, torch.tensor([0, 1, 1, 2])
    table = torch.tensor([[9, 7, 5]], **I32)  # pages of four
    rows, placed = read_slots_torch(slots, torch.tensor([2], device=DEVICE), table, 4)
    assert rows.length.tolist() == [6]
    assert torch.equal(rows.mask, slots.mask[2:])
    assert placed.positions.tolist() == [[6, 7, 7, 8]]
    assert placed.write_at.tolist() == [[30, 31, 20, 21]]
    assert placed.kv_lens.tolist() == [10]


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("page", [1, 16])
def test_reading_triton_equals_torch(nodes: int, page: int) -> None:
    torch.manual_seed(nodes)
    slots = random_slots(6, nodes)
    before = copy(slots)
    ids = torch.tensor([3, 5, 0, 5, 5], device=DEVICE)  # two of padding
    wide = torch.randint(0, 1000, (5, 3 + (30 + nodes) // page), **I32)
    table = wide[:, 1:]  # rows lie further apart than they are long
    got, want = read_slots_triton(slots, ids, table, page), read_slots_torch(slots, ids, table, page)
    for a, b in zip((*got[0], *got[1]), (*want[0], *want[1]), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    for row in got[0]:
        row.zero_()
    assert all(torch.equal(a, b) for a, b in zip(slots, before, strict=True)), "what is read is a copy"


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("has_tree", [False, True])
def test_writing_triton_equals_torch(nodes: int, links: bool, has_tree: bool) -> None:
    torch.manual_seed(nodes)
    ours, ids = random_slots(6, nodes), torch.tensor([3, 5, 0, 5, 4, 5], device=DEVICE)
    ours.has_tree[:] = not has_tree
    for old in ours[:5]:
        old += 100  # no link of one node is by chance what it will be
    theirs, before = copy(ours), copy(ours)
    keep = torch.tensor([True, False, True, False, False, False], device=DEVICE)
    tree, length = random_tree(6, nodes), torch.arange(50, 56, device=DEVICE)
    write_slots_triton(ours, ids, keep, tree, length, has_tree, links)
    write_slots_torch(theirs, ids, keep, tree, length, has_tree, links)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert ours.length[[3, 0]].tolist() == [50, 52]
    assert ours.has_tree.tolist() == [has_tree, *[not has_tree] * 2, has_tree, *[not has_tree] * 2]
    assert torch.equal(ours.tokens[[3, 0]], tree[0][[0, 2]])
    new: list[Tensor] = [a for a, b in zip(ours, before, strict=True) if not torch.equal(a, b)]
    assert len(new) == (7 if links else 3)
    left = [1, 2, 4, 5]
    assert all(torch.equal(a[left], b[left]) for a, b in zip(ours, before, strict=True))


def test_links_that_are_not_written_need_not_lie_together() -> None:
    slots = random_slots(3, 4)
    tree = random_tree(1, 4)
    spread = (tree[0].repeat(2, 1), *(t.expand(2, *t.shape[1:]) for t in tree[1:]))
    ids, length = torch.tensor([0, 2], device=DEVICE), torch.tensor([1, 2], device=DEVICE)
    write_slots_triton(slots, ids, torch.ones_like(ids).bool(), spread, length, True, False)
    assert torch.equal(slots.tokens[[0, 2]], spread[0])
