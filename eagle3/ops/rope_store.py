"""Norm (where a model does) and turn queries and keys, and write keys and values into the pool.

All straight from the fused projection.
"""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped
from eagle3.ops.rms_norm import rms_norm_torch
from eagle3.ops.rope import rope
from eagle3.ops.store_kv import store_kv


class HeadNorms(NamedTuple):
    """Of each head's query and of its key, before they are turned: weights [hd], and their epsilon."""

    query: Tensor
    key: Tensor
    eps: float


def normed(heads: Tensor, norms: HeadNorms, n_kv: int) -> Tensor:
    """heads [T, n_h + 2 n_kv, hd] -> the same with queries and keys normed."""
    queries, keys, values = torch.split(heads, [heads.shape[1] - 2 * n_kv, n_kv, n_kv], dim=1)
    sides = ((queries, norms.query), (keys, norms.key))
    both = [rms_norm_torch(x.flatten(0, 1), weight, norms.eps)[0].view_as(x) for x, weight in sides]
    return torch.cat([*both, values], dim=1)


def rope_store_torch(
    heads: Tensor, cos: Tensor, sin: Tensor, kv: Tensor, write_at: Tensor, n_kv: int, norms: HeadNorms | None = None
) -> Tensor:
    """heads [T, n_h + 2 n_kv, hd], queries, keys, values -> queries [T, n_h, hd] normed by `norms` and turned.

    Keys, likewise, and values go into kv [pages, page, E] at the flat entries write_at [T] i64. cos, sin
    [T, hd / 2] as in `rope`.
    """
    turn = heads.shape[1] - n_kv
    heads = heads if norms is None else normed(heads, norms, n_kv)
    qk = rope(heads[:, :turn], cos, sin)
    store_kv(qk[:, turn - n_kv :], heads[:, turn:], kv, write_at)
    return qk[:, : turn - n_kv]


def rope_store_triton(
    heads: Tensor, cos: Tensor, sin: Tensor, kv: Tensor, write_at: Tensor, n_kv: int, norms: HeadNorms | None = None
) -> Tensor:
    """As `rope_store_torch`, in one launch; no float64."""
    rows, count, dim = heads.shape
    assert heads.is_contiguous()
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    assert kv.is_contiguous()
    assert kv.shape[2] == 2 * n_kv * dim
    queries = count - 2 * n_kv
    q = torch.empty(rows, queries, dim, dtype=heads.dtype, device=heads.device)
    block = min(8, triton.next_power_of_2(count))
    query, key, eps = norms or (heads, heads, 0.0)
    assert query.dtype == key.dtype == heads.dtype
    assert query.is_contiguous()
    assert key.is_contiguous()
    _rope_store_kernel[(rows, triton.cdiv(count, block))](
        heads,
        cos,
        sin,
        q,
        kv,
        write_at,
        query,
        key,
        eps,
        queries,
        n_kv,
        dim // 2,
        NORMS=norms is not None,
        BLOCK=block,
        HALF=triton.next_power_of_2(dim // 2),
        num_warps=2,
        **overlapped(heads),
    )
    return q


@triton.jit  # type: ignore[untyped-decorator]
def _rope_store_kernel(  # type: ignore[no-untyped-def]
    heads,
    cos,
    sin,
    q,
    kv,
    write_at,
    query,
    key,
    eps,
    queries,
    n_kv,
    half,
    NORMS: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]
    column = tl.arange(0, HALF)[None, :]
    if NORMS:
        within, of_query = column < half, head < queries  # a value takes the key's, and drops it
        low, high = tl.load(query + column, mask=within), tl.load(query + half + column, mask=within)
        key_low, key_high = tl.load(key + column, mask=within), tl.load(key + half + column, mask=within)
        scale_x = tl.where(of_query, low, key_low).to(tl.float32)
        scale_y = tl.where(of_query, high, key_high).to(tl.float32)
    follow(OVERLAP)
    inside = (head < queries + 2 * n_kv) & (column < half)
    at = head * (2 * half) + column  # of the first half; the second is `half` on
    source = heads + row * (queries + 2 * n_kv) * (2 * half) + at
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + half, mask=inside, other=0.0)
    c = tl.load(cos + row * half + column, mask=column < half, other=0.0)
    s = tl.load(sin + row * half + column, mask=column < half, other=0.0)
    x, y, turned = first, second, head < queries + n_kv
    if NORMS:  # rounded where the separate ops round
        wide_x, wide_y = tl.where(turned, x.to(tl.float32), 0.0), tl.where(turned, y.to(tl.float32), 0.0)
        squares = tl.sum(wide_x * wide_x, 1) + tl.sum(wide_y * wide_y, 1)
        factor = tl.rsqrt(squares / (2 * half) + eps)[:, None]
        x = ((wide_x * factor).to(first.dtype).to(tl.float32) * scale_x).to(first.dtype)
        y = ((wide_y * factor).to(first.dtype).to(tl.float32) * scale_y).to(first.dtype)
    x, y = x.to(c.dtype), y.to(c.dtype)
    first = tl.where(turned, (x * c - y * s).to(first.dtype), first)
    second = tl.where(turned, (y * c + x * s).to(second.dtype), second)
    mine = inside & (head < queries)
    target = q + row * queries * (2 * half) + at
    tl.store(target, first, mask=mine)
    tl.store(target + half, second, mask=mine)
    stored = inside & (head >= queries)
    entry = tl.load(write_at + row).to(tl.int64)
    target = kv + entry * (2 * n_kv) * (2 * half) + at - queries * (2 * half)  # keys, then values
    tl.store(target, first.to(kv.dtype.element_ty), mask=stored)
    tl.store(target + half, second.to(kv.dtype.element_ty), mask=stored)


def rope_store(
    heads: Tensor, cos: Tensor, sin: Tensor, kv: Tensor, write_at: Tensor, n_kv: int, norms: HeadNorms | None = None
) -> Tensor:
    """As `rope_store_torch`, by the kernel on a GPU."""
    return (rope_store_triton if by_kernel(heads) else rope_store_torch)(heads, cos, sin, kv, write_at, n_kv, norms)
