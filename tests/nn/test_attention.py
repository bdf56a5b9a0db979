import pytest
import torch
from torch import Tensor

from eagle3.nn.attention import Attention
from eagle3.nn.linear import Linear
from eagle3.ops.rope import rope_torch

CPU = torch.device("cpu")


@pytest.mark.parametrize("bias", [False, True])
def test_the_core_is_the_callers_and_the_input_may_be_wider_than_the_output(bias: bool) -> None:
    attention = Attention(16, 8, 3, 1, 4, qkv_bias=bias, o_bias=bias, dtype=torch.float64, device=CPU)
    for value in attention.parameters():
        torch.nn.init.normal_(value)
    x, angles = torch.randn(5, 16, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    seen: list[Tensor] = []

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.extend((q, k, v))
        return q * v

    out = attention(x, (cos, sin), core)
    raw = x @ attention.qkv.weight.T + (attention.qkv.bias if bias else 0)
    q, k, v = (part.reshape(5, -1, 4) for part in raw.split([12, 4, 4], dim=1))
    q, k = rope_torch(q, cos, sin), rope_torch(k, cos, sin)
    for ours, expected in zip(seen, (q, k, v), strict=True):
        torch.testing.assert_close(ours, expected)
    expected = (q * v).reshape(5, 12) @ attention.o.weight.T + (attention.o.bias if bias else 0)
    torch.testing.assert_close(out, expected)


def test_gradients_reach_every_parameter_through_a_dense_core() -> None:
    attention = Attention(8, 8, 2, 2, 4, dtype=torch.float64, device=CPU)
    for value in attention.parameters():
        torch.nn.init.normal_(value)
    angles = torch.randn(3, 2, dtype=torch.float64)
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("qhk,khd->qhd", torch.einsum("qhd,khd->qhk", q, k).softmax(-1), v)

    weights = tuple(attention.parameters())

    def forward(x: Tensor, *_: Tensor) -> Tensor:
        out: Tensor = attention(x, (angles.cos(), angles.sin()), core)
        return out

    assert torch.autograd.gradcheck(forward, (x, *weights))


def test_a_fused_linear_knows_its_parts() -> None:
    linear = Linear(3, 2, 4, 1, bias=True, dtype=torch.float32, device=CPU)
    assert linear.outs == (2, 4, 1)
    assert linear.weight.shape == (7, 3)
    assert linear.bias is not None
    assert linear.bias.shape == (7,)
