import pytest
import torch
import torch.nn.functional as F

from eagle3.ops.linear import linear, linear_torch, linear_triton
from eagle3.ops.streams import Stream
from eagle3.ops.swiglu import swiglu_torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("count", "outs", "depth", "stream"),
    [
        (1, 64, 128, Stream(16, 32, 64, 1, 4, 2)),
        (5, 64, 256, Stream(16, 16, 64, 2, 4, 2)),
        (20, 96, 512, Stream(32, 32, 64, 4, 4, 2)),
        (37, 70, 100, Stream(16, 32, 32, 1, 4, 2)),  # nothing divides anything
        (3, 33, 200, Stream(16, 16, 64, 3, 4, 2)),  # the last part is shorter
    ],
)
def test_equals_torch(dtype: torch.dtype, bias: bool, count: int, outs: int, depth: int, stream: Stream) -> None:
    torch.manual_seed(count)
    x, weight = torch.randn(count, depth + 5, device=DEVICE).to(dtype)[:, :depth], torch.randn(outs, depth).to(dtype)
    weight, b = weight.to(DEVICE), torch.randn(outs, device=DEVICE).to(dtype) if bias else None
    exact = F.linear(x.double(), weight.double(), None if b is None else b.double())
    for _ in range(2):  # the counters of arrived parts are as they were
        got = linear_triton(x, weight, b, stream)
        assert got.dtype == dtype
        assert (got.double() - exact).norm() <= 2 * torch.finfo(dtype).eps * exact.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "width", "depth"), [(1, 32, 64), (19, 48, 96), (40, 33, 70)])
def test_gated_equals_the_product_and_its_activation(dtype: torch.dtype, count: int, width: int, depth: int) -> None:
    torch.manual_seed(width)
    x = torch.randn(count, depth, device=DEVICE).to(dtype)
    weight, bias = (torch.randn(2 * width, *n, device=DEVICE).to(dtype) for n in ((depth,), ()))
    exact = swiglu_torch(F.linear(x.double(), weight.double(), bias.double()))
    got = linear_triton(x, weight, bias, Stream(16, 32, 32, 1, 4, 2), gated=True)
    assert got.shape == (count, width)
    assert (got.double() - exact).norm() <= 3 * torch.finfo(dtype).eps * exact.norm()


@pytest.mark.parametrize("splits", [1, 2])
def test_bits_do_not_depend_on_the_other_rows(splits: int) -> None:
    x, weight = torch.randn(40, 128, device=DEVICE).half(), torch.randn(48, 128, device=DEVICE).half()
    stream = Stream(16, 16, 32, splits, 4, 2)
    together = linear_triton(x, weight, None, stream)
    for rows in (slice(0, 1), slice(3, 8), slice(17, 40)):
        assert torch.equal(linear_triton(x[rows], weight, None, stream), together[rows])


def test_steady_on_a_cpu_is_a_row_at_a_time() -> None:
    x, weight, bias = torch.randn(9, 64), torch.randn(32, 64), torch.randn(32)
    together = linear_torch(x, weight, bias, steady=True)
    assert torch.equal(linear(x[4:6], weight, bias, steady=True), together[4:6])
    torch.testing.assert_close(together, F.linear(x, weight, bias))
    assert linear(x[:0], weight, steady=True).shape == (0, 32)
    torch.testing.assert_close(linear(x, weight, bias, gated=True), swiglu_torch(F.linear(x, weight, bias)))
