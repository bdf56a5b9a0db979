import pytest
import torch

from eagle3.ops.loop_rows import loop_rows_torch, loop_rows_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_worked_example() -> None:
    table = torch.tensor([[5, 3, 2], [9, 8, 7]], device=DEVICE, dtype=torch.int32)
    got = loop_rows_torch(torch.tensor([3, 6], device=DEVICE), table, 4, 2, 3)  # two steps of two nodes
    assert got.positions.tolist() == [[3, 3, 6, 6], [4, 4, 7, 7]]
    assert got.write_at.tolist() == [[23, 12, 34, 35], [13, 14, 28, 29]]
    assert got.kv_lens.tolist() == [[5, 8], [7, 10]]
    assert got.depth.tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("top_k", [1, 3, 10])
@pytest.mark.parametrize("depth", [1, 2, 6])
@pytest.mark.parametrize("page", [1, 16])
def test_triton_equals_torch(top_k: int, depth: int, page: int) -> None:
    torch.manual_seed(top_k)
    length = torch.tensor([0, 15, 16, 29, 0], device=DEVICE)
    width = 2 + (30 + top_k * depth) // page
    table = torch.randint(0, 1000, (5, width), device=DEVICE, dtype=torch.int32)[:, 1:]
    got = loop_rows_triton(length, table, page, top_k, depth)
    want = loop_rows_torch(length, table, page, top_k, depth)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
        assert all(row.is_contiguous() for row in a)
