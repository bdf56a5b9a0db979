"""The first input of a head: a token's embedding and a feature, each normed, side by side."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped
from eagle3.ops.rms_norm import rms_norm_torch


def pair_norm_torch(
    ids: Tensor, table: Tensor, hidden: Tensor, embed_weight: Tensor, hidden_weight: Tensor, eps: float
) -> Tensor:
    """ids [T], table [V, H], hidden [T, H], two norms' weights [H] -> [norm(table[ids]), norm(hidden)] [T, 2H].

    The embedding is rounded to the type of hidden before it is normed.
    """
    embedded = F.embedding(ids, table).to(hidden.dtype)
    sides = rms_norm_torch(embedded, embed_weight, eps)[0], rms_norm_torch(hidden, hidden_weight, eps)[0]
    return torch.cat(sides, dim=1)


def pair_norm_triton(
    ids: Tensor, table: Tensor, hidden: Tensor, embed_weight: Tensor, hidden_weight: Tensor, eps: float
) -> Tensor:
    """As `pair_norm_torch`, in one launch; no float64. A side has the bits that `rms_norm_triton` gives it."""
    rows, width = hidden.shape
    assert (table.stride(1), hidden.stride(1), ids.stride(0)) == (1, 1, 1)
    assert embed_weight.dtype == hidden_weight.dtype
    out = hidden.new_empty(rows, 2 * width, dtype=torch.promote_types(hidden.dtype, hidden_weight.dtype))
    block = triton.next_power_of_2(width)
    _pair_norm_kernel[(rows, 2)](
        ids,
        table,
        hidden,
        embed_weight,
        hidden_weight,
        out,
        table.stride(0),
        hidden.stride(0),
        width,
        eps,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
        **overlapped(hidden),
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _pair_norm_kernel(  # type: ignore[no-untyped-def]
    ids,
    table,
    hidden,
    embed_weight,
    hidden_weight,
    out,
    table_stride,
    hidden_stride,
    width,
    eps,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    row, side = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < width
    if side == 0:
        scale = tl.load(embed_weight + column, mask=inside, other=0.0)
        source = table + tl.load(ids + row) * table_stride
        value = tl.load(source + column, mask=inside, other=0.0).to(hidden.dtype.element_ty)
    else:
        scale = tl.load(hidden_weight + column, mask=inside, other=0.0)
        value = tl.load(hidden + row * hidden_stride + column, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    normed = (wide * factor).to(value.dtype).to(tl.float32) * scale.to(tl.float32)
    tl.store(out + (2 * row + side) * width + column, normed.to(out.dtype.element_ty), mask=inside)


def pair_norm(
    ids: Tensor, table: Tensor, hidden: Tensor, embed_weight: Tensor, hidden_weight: Tensor, eps: float
) -> Tensor:
    """As `pair_norm_torch`, by the kernel on a GPU."""
    norm = pair_norm_triton if by_kernel(hidden) else pair_norm_torch
    return norm(ids, table, hidden, embed_weight, hidden_weight, eps)
