import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagle3.ops.relocate_kv import relocate_kv, relocate_kv_torch, relocate_kv_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Move = Callable[[Tensor, Tensor, Tensor, Tensor], None]


def moved(kv: Tensor, table: Tensor, base: Tensor, nodes: Tensor) -> Tensor:
    """The same moves, slowly."""
    out, page = kv.clone(), kv.shape[2]

    def place(b: int, entry: int) -> tuple[int, int]:
        return int(table[b, entry // page]), entry % page

    for b in range(nodes.shape[0]):
        for i, node in enumerate(nodes[b].tolist()):
            if node >= 0:
                (p, o), (q, r) = place(b, int(base[b]) + node), place(b, int(base[b]) + i + 1)
                out[:, q, r] = kv[:, p, o]
    return out


def case(
    nodes: list[list[int]], page: int, first: int, width: int = 37, layers: int = 3, entries: int = 160
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(page)
    rows, pages = len(nodes), -(-entries // page)
    kv = torch.randn(layers, rows * pages + 1, page, width, device=DEVICE)
    table = 1 + torch.randperm(rows * pages, device=DEVICE).view(rows, pages).int()
    base = first + 3 * torch.arange(rows, device=DEVICE)
    return kv, table, base, torch.tensor(nodes, device=DEVICE)


PATHS = {
    "only-the-root": [[-1, -1, -1]],
    "a-chain-moves-nothing": [[1, 2, 3]],
    "a-target-is-also-a-source": [[3, 7, 11], [2, 5, -1]],
    "close-together": [[2, 3, 4], [1, 3, 4], [1, 2, 4]],
    "none-at-all": [[], []],
}


@pytest.mark.parametrize("move", [relocate_kv_torch, relocate_kv])
@pytest.mark.parametrize("page", [1, 4, 64])
@pytest.mark.parametrize("nodes", PATHS.values(), ids=PATHS.keys())
@pytest.mark.parametrize("first", [5, 61])  # 61: over the border of a page of 64
def test_moves(move: Move, page: int, nodes: list[list[int]], first: int) -> None:
    kv, table, base, path = case(nodes, page, first)
    want = moved(kv, table, base, path)
    unmoved = torch.equal(want, kv)
    move(kv, table, base, path.view(len(nodes), -1).long())
    assert torch.equal(kv, want)
    assert unmoved == (nodes in ([[-1, -1, -1]], [[1, 2, 3]], [[], []]))


def test_worked_example() -> None:
    # committed 10, nodes 2 and 4 accepted: entry 12 to 11, 14 to 12, the root's 10 stays
    kv = torch.arange(16.0).view(1, 4, 4, 1).clone()
    relocate_kv_torch(kv, torch.arange(4)[None], torch.tensor([10]), torch.tensor([[2, 4]]))
    assert kv.flatten().tolist() == [*range(11), 12, 14, 13, 14, 15]
    # node 1 alone is in its place already
    relocate_kv_torch(kv, torch.arange(4)[None], torch.tensor([10]), torch.tensor([[1, -1]]))
    assert kv.flatten().tolist() == [*range(11), 12, 14, 13, 14, 15]


def test_all_is_read_before_any_is_written() -> None:
    kv = torch.arange(8.0).view(1, 1, 8, 1).clone()
    relocate_kv_torch(kv, torch.zeros(1, 1).int(), torch.tensor([0]), torch.tensor([[2, 1]]))
    assert kv.flatten().tolist() == [0, 2, 1, 3, 4, 5, 6, 7]


def test_past_the_end_nothing_beyond_the_table_is_touched() -> None:
    kv = torch.randn(2, 3, 4, 5)
    before = kv.clone()
    relocate_kv_torch(kv, torch.tensor([[2]]), torch.tensor([3]), torch.tensor([[-1, -1, -1]]))
    assert torch.equal(kv, before)


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize(("width", "dtype"), [(37, torch.float32), (1200, torch.float32), (64, torch.float16)])
def test_triton_equals_torch(page: int, width: int, dtype: torch.dtype) -> None:
    rng = random.Random(page)
    lengths = [5, 4, 3, 0]
    nodes = [sorted(rng.sample(range(1, 41), n)) + [-1] * (5 - n) for n in lengths]
    kv, table, base, path = case(nodes, page, 7, width, layers=2)
    before = kv.to(dtype)
    want, got = before.clone(), before.clone()
    relocate_kv_torch(want, table, base, path)
    relocate_kv_triton(got, table, base, path)
    assert torch.equal(got, want)
    assert not torch.equal(got, before)
