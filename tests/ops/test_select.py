import math

import pytest
import torch

from eagle3.ops.select import CHUNK, argmax, argmax_torch, argmax_triton, order_key, topk

NAN, INF = math.nan, math.inf
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]


@pytest.mark.parametrize(
    ("values", "order"),
    [
        pytest.param([1.0, 3.0, 2.0], [1, 2, 0], id="distinct"),
        pytest.param([2.0, 2.0, 2.0], [0, 1, 2], id="equal"),
        pytest.param([-0.0, 0.0, -0.0, 1e-45], [3, 0, 1, 2], id="zeros-are-one"),
        pytest.param([NAN, -INF, -1.0, NAN, INF], [4, 2, 0, 1, 3], id="nan-is-minus-infinity"),
        pytest.param([-2.0, -1.0, -1.5, -1.0], [1, 3, 2, 0], id="negative"),
        pytest.param([NAN, NAN], [0, 1], id="nothing-but-nan"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_order(values: list[float], order: list[int], dtype: torch.dtype) -> None:
    row = torch.tensor(values, dtype=dtype)
    if 1e-45 in values and dtype is torch.bfloat16:
        row[3] = 1e-38
    keys = order_key(row)
    assert keys.dtype == torch.int64
    assert keys.argsort(descending=True).tolist() == order
    assert argmax(row).item() == order[0]
    assert topk(row, len(values))[1].tolist() == order


def test_float64_is_compared_in_float32() -> None:
    row = torch.tensor([1.0, 1.0 + 1e-12], dtype=torch.float64)
    assert argmax(row).item() == 0
    assert topk(row, 1)[1].tolist() == [0]


def test_keys_are_unique_and_sort_as_a_stable_sort() -> None:
    torch.manual_seed(0)
    rows = torch.randint(-4, 4, (5, 3, 200)).float() / 4  # many ties
    keys = order_key(rows)
    assert all(len(set(row.tolist())) == 200 for row in keys.flatten(0, 1))
    want = rows.sort(dim=-1, descending=True, stable=True)
    values, indices = topk(rows, 17)
    assert torch.equal(values, want.values[..., :17])
    assert torch.equal(indices, want.indices[..., :17])
    assert torch.equal(argmax(rows), want.indices[..., 0])


def test_values_of_nan_come_back_as_minus_infinity() -> None:
    values, indices = topk(torch.tensor([[NAN, 1.0, NAN]]), 3)
    assert values.tolist() == [[1.0, -INF, -INF]]
    assert indices.tolist() == [[1, 0, 2]]


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("size", [1, 37, CHUNK, 2 * CHUNK + 5])
def test_argmax_triton_equals_torch(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(size)
    rows = torch.randn(8, size + 2, device=DEVICE).to(dtype)[:, :size]
    rows[1] = -INF
    rows[2] = NAN
    rows[3] = rows[3].round()  # ties, also over the borders of chunks
    rows[4] = -0.0
    rows[4, size // 2 :] = 0.0
    rows[5, ::2] = NAN
    rows[6, size // 3 :] = INF
    rows[7], rows[7, -1] = NAN, -INF
    got = argmax_triton(rows)
    assert torch.equal(got, argmax_torch(rows))
    assert got[1:3].tolist() == [0, 0]
    assert torch.equal(argmax_triton(rows[None]), got[None])


@pytest.mark.parametrize("values", [[NAN, -INF, -1.0, NAN, INF], [-0.0, 0.0], [-2.0, -1.0, -1.0], [1e-45, 0.0]])
def test_argmax_triton_orders_as_the_keys_do(values: list[float]) -> None:
    row = torch.tensor([values], device=DEVICE)
    assert argmax_triton(row).item() == order_key(row).argmax().item()
