import math

import pytest
import torch

from eagle3.ops.path_rows import path_rows_torch, path_rows_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_worked_example() -> None:
    """Nodes 2 and 4 accepted past 10; none past 20; padding."""
    tokens = torch.tensor([[5, 6, 7], [8, 0, 0], [9, 0, 0]], device=DEVICE)
    counts, length = torch.tensor([3, 1, 1], device=DEVICE), torch.tensor([10, 20, 0], device=DEVICE)
    nodes = torch.tensor([[2, 4], [-1, -1], [-1, -1]], device=DEVICE)
    slots = torch.tensor([1, 0, 4], device=DEVICE)
    table = torch.arange(18, device=DEVICE, dtype=torch.int32).view(3, 6).flip(1).contiguous()
    captured = torch.arange(15.0, device=DEVICE).view(3, 5, 1)
    got = path_rows_torch(tokens, counts, nodes, length, slots, 4, table, 4, captured)
    assert got.counts.tolist() == [3, 1, 0]
    assert got.real.tolist() == [True, True, False]
    assert got.root.tolist() == [7, 8, 9]
    assert got.length.tolist() == [13, 21, 0]
    assert got.last.tolist() == [2, 3, 6]
    assert got.kv_lens.tolist() == [13, 23, 3]
    assert got.positions.tolist() == [10, 11, 12, 20, 21, 22, 0, 1, 2]
    assert got.write_at.tolist() == [3 * 4 + 2, 3 * 4 + 3, 2 * 4, 6 * 4, 6 * 4 + 1, 6 * 4 + 2, 68, 69, 70]
    assert got.depth.tolist() == [[0, 1, 2]] * 3
    assert got.captured[:, 0].tolist() == [0, 2, 4, 5, 5, 5, 10, 10, 10]


@pytest.mark.parametrize("depth", [0, 1, 5])
@pytest.mark.parametrize("width", [0, 7, 1500])
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_triton_equals_torch(depth: int, width: int, page: int, dtype: torch.dtype) -> None:
    torch.manual_seed(depth)
    G, N, dummy = 5, 2 * depth + 1, 8
    counts = torch.randint(1, depth + 2, (G,), device=DEVICE)
    past = torch.arange(1, depth + 1, device=DEVICE) >= counts[:, None]
    nodes = torch.randint(1, N + 1, (G, depth), device=DEVICE).clamp(max=N - 1).masked_fill(past, -1)
    tokens = torch.randint(0, 1 << 40, (G, depth + 1), device=DEVICE)
    length = torch.tensor([0, 15, 16, 40, 0], device=DEVICE)
    slots = torch.tensor([3, dummy, 0, 1, dummy], device=DEVICE)
    table = torch.randint(0, 1000, (G, 2 + 50 // page), device=DEVICE, dtype=torch.int32)[:, 1:]
    captured = torch.randn(G, N, width, device=DEVICE).to(dtype)
    captured.view(-1)[:2] = math.nan
    given = (tokens, counts, nodes, length, slots, dummy, table, page, captured)
    before = [t.clone() for t in given if isinstance(t, torch.Tensor)]
    for a, b in zip(path_rows_triton(*given), path_rows_torch(*given), strict=True):
        assert a.dtype == b.dtype
        assert a.is_contiguous()
        assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))
    after = [t for t in given if isinstance(t, torch.Tensor)]
    assert all(torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0)) for a, b in zip(after, before, strict=True))
