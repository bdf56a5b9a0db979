import pytest
import torch

from eagle3.ops.rms_norm import rms_norm_torch
from eagle3.ops.rope import rope_torch
from eagle3.ops.rope_store import HeadNorms, rope_store_torch, rope_store_triton
from eagle3.ops.store_kv import store_kv_torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]


def test_the_reference_is_the_two_plain_ops() -> None:
    heads, angles = torch.randn(3, 8, 6), torch.randn(3, 3)
    kv, want = torch.zeros(2, 2, 4, 24).unbind()
    at = torch.tensor([6, 0, 3])
    q = rope_store_torch(heads, angles.cos(), angles.sin(), kv, at, 2)
    both = rope_torch(heads[:, :6], angles.cos(), angles.sin())
    store_kv_torch(both[:, 4:], heads[:, 6:], want, at)
    assert torch.equal(q, both[:, :4])
    assert torch.equal(kv, want)


def norms(dim: int, dtype: torch.dtype) -> HeadNorms:
    query, key = torch.randn(2, dim, device=DEVICE).to(dtype)
    return HeadNorms(query, key, 1e-5)


def test_the_reference_norms_queries_and_keys() -> None:
    heads, angles, ours = torch.randn(3, 8, 6, device=DEVICE), torch.randn(3, 3, device=DEVICE), norms(6, torch.float32)
    kv, want = torch.zeros(2, 2, 4, 24, device=DEVICE).unbind()
    at, cos, sin = torch.tensor([6, 0, 3], device=DEVICE), angles.cos(), angles.sin()
    q = rope_store_torch(heads, cos, sin, kv, at, 2, ours)
    queries, _ = rms_norm_torch(heads[:, :4], ours.query, ours.eps)
    keys, _ = rms_norm_torch(heads[:, 4:6], ours.key, ours.eps)
    plain = rope_store_torch(torch.cat([queries, keys, heads[:, 6:]], dim=1), cos, sin, want, at, 2)
    torch.testing.assert_close(q, plain)
    torch.testing.assert_close(kv, want)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(("queries", "n_kv", "dim"), [(1, 1, 2), (4, 2, 16), (9, 3, 20), (6, 6, 64)])
@pytest.mark.parametrize(("page", "normed"), [(1, False), (4, False), (4, True)])
def test_triton_equals_torch(dtype: torch.dtype, queries: int, n_kv: int, dim: int, page: int, normed: bool) -> None:
    torch.manual_seed(dim)
    ours = norms(dim, dtype) if normed else None
    rows = 5
    heads = torch.randn(rows, queries + 2 * n_kv, dim, device=DEVICE).to(dtype)
    heads[0, -1, 0] = torch.inf  # a value, which is never multiplied
    angles = torch.randn(rows, dim // 2, device=DEVICE)
    cos, sin = angles.cos(), angles.sin()
    pool = torch.full((2, 24 // page, page, 2 * n_kv * dim), torch.nan, device=DEVICE).to(dtype)
    at = torch.tensor([7, 0, 22, 3, 12], device=DEVICE)
    want = rope_store_torch(heads, cos, sin, pool[0], at, n_kv, ours)
    before = heads.clone()
    got = rope_store_triton(heads, cos, sin, pool[1], at, n_kv, ours)
    ulps = 4 if normed else 1  # a norm rounds three times more
    close = {"rtol": 2 * ulps * torch.finfo(dtype).eps, "atol": ulps * torch.finfo(dtype).eps, "equal_nan": True}
    torch.testing.assert_close(got, want, **close)
    torch.testing.assert_close(pool[1], pool[0], **close)
    values = pool.view(2, 24, 2, n_kv, dim)[:, at, 1]
    assert torch.equal(values[1], values[0])
    assert torch.equal(heads, before)
    assert pool[1].isnan().sum() == (24 - rows) * 2 * n_kv * dim


def test_the_pool_may_have_another_type() -> None:
    heads, angles = torch.randn(2, 6, 8, device=DEVICE), torch.randn(2, 4, device=DEVICE)
    pool = torch.zeros(2, 3, 4, 32, dtype=torch.float16, device=DEVICE)
    at = torch.tensor([11, 4], device=DEVICE)
    for kv, op in zip(pool, (rope_store_torch, rope_store_triton), strict=True):
        q = op(heads, angles.cos(), angles.sin(), kv, at, 2)
        assert q.dtype == torch.float32
    torch.testing.assert_close(pool[1], pool[0], rtol=1e-3, atol=1e-3)
    assert pool[1].any()
