import pytest
import torch
from torch import Tensor

from eagle3.kv.meta import TreeMeta
from eagle3.nn.attention import Attention, PagedCore
from eagle3.nn.linear import Linear
from eagle3.ops import rms_norm, rope_store
from eagle3.ops.rope import rope_torch

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


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


def heads_normed() -> Attention:
    torch.manual_seed(2)
    attention = Attention(8, 8, 4, 2, 6, qkv_bias=True, qk_norm=1e-6, dtype=torch.float32, device=DEVICE)
    for value in attention.parameters():
        torch.nn.init.normal_(value)
    return attention


def test_queries_and_keys_are_normed_head_by_head_before_they_are_turned() -> None:
    attention = heads_normed().double().cpu()
    x, angles = torch.randn(5, 8, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    seen: list[Tensor] = []

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.extend((q, k, v))
        return q

    attention(x, (cos, sin), core)
    raw = x @ attention.qkv.weight.T + attention.qkv.bias
    q, k, v = (part.reshape(5, -1, 6) for part in raw.split([24, 12, 12], dim=1))
    assert attention.q_norm is not None
    assert attention.k_norm is not None
    normed = []
    for part, norm in ((q, attention.q_norm), (k, attention.k_norm)):
        one = torch.stack([head / (head.square().mean() + 1e-6).sqrt() * norm.weight for head in part.reshape(-1, 6)])
        normed.append(rope_torch(one.view(part.shape), cos, sin))
    for ours, expected in zip(seen, (*normed, v), strict=True):
        torch.testing.assert_close(ours, expected)


@torch.no_grad()
def test_normed_heads_go_through_the_kernels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = heads_normed()
    x, angles = torch.randn(6, 8, device=DEVICE), torch.randn(6, 3, device=DEVICE)
    meta = TreeMeta(
        write_at=torch.tensor([4, 5, 6, 8, 9, 10], device=DEVICE),
        kv_lens=torch.tensor([3, 3], dtype=torch.int32, device=DEVICE),
        table=torch.tensor([[1], [2]], dtype=torch.int32, device=DEVICE),
        tail=3,
        depth=torch.tensor([[0, 1, 1], [0, 1, 2]], dtype=torch.int32, device=DEVICE),
        mask=torch.tensor([[[1], [3], [5]], [[1], [3], [7]]], dtype=torch.int32, device=DEVICE),
    )
    found, pools = [], []
    for kernel in (False, True):
        for op in (rms_norm, rope_store):
            monkeypatch.setattr(op, "by_kernel", lambda _x, kernel=kernel: kernel)
        pools.append(torch.zeros(3, 4, 24, device=DEVICE))
        core = PagedCore(pools[-1], meta, 6**-0.5, window=2)
        found.append(attention(x, (angles.cos(), angles.sin()), core))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(pools[1], pools[0], rtol=0, atol=1e-5)
