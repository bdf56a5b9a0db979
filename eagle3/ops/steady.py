"""Attention summed in an order that positions alone fix: a row's bits do not depend on what is computed beside it."""

# ruff: noqa: ANN001, ANN201, ANN202 (a kernel's arguments have no Python types)

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import follow, overlapped

# Entries from one multiple of PART to the next are summed on their own, and these sums joined in their order. A
# multiple of every tile's entries; short enough that a few thousand entries of one request keep a GPU busy.
PART = 512
BLOCK = 64  # the same in torch, where a block's products are all in memory at once


def attend_steady(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, empty: Tensor, scale: float) -> Tensor:
    """As `paged.attend`: q [B, Q, n_h, hd] over k, v [B, n_kv, S, hd] where visible [B, Q, S]; zeros where empty [B].

    A row's bits depend on the entries that it sees and their places alone, not on B, Q or S: no matrix product,
    whose order of sums is its library's choice by shape. Slow.
    """
    (B, Q, n_h, hd), (_, n_kv, S, _) = q.shape, k.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    rows = q.to(wide).reshape(B, Q, n_kv, n_h // n_kv, 1, hd)
    acc, total = rows.new_zeros(B, Q, n_kv, n_h // n_kv, hd), rows.new_zeros(B, Q, n_kv, n_h // n_kv)
    top = torch.full_like(total, -torch.inf)
    for start in range(0, S, BLOCK):
        short = max(0, start + BLOCK - S)
        keys, values = (
            F.pad(x[:, :, start : start + BLOCK].to(wide), (0, 0, 0, short))[:, None, :, None] for x in (k, v)
        )  # [B, 1, n_kv, 1, BLOCK, hd]
        sees = F.pad(visible[:, :, start : start + BLOCK], (0, short))[:, :, None, None]
        scores = ((rows * keys.contiguous()).sum(-1) * scale).masked_fill(~sees, -torch.inf)
        high = torch.maximum(top, scores.amax(-1))
        shift = high.masked_fill(high == -torch.inf, 0.0)
        weights, keep = (scores - shift[..., None]).exp(), (top - shift).exp()
        acc = acc * keep[..., None] + (weights[..., None, :] * values.mT.contiguous()).sum(-1)
        total, top = total * keep + weights.sum(-1), high
    out = acc / total.masked_fill(total == 0, 1.0)[..., None]
    return out.view(B, Q, n_h, hd).to(q.dtype).masked_fill(empty[:, None, None, None], 0.0)


@triton.jit
def close_part(acc, top, total):  # type: ignore[no-untyped-def]
    """The mean of what `absorb` summed, [rows, D], and the log2 of its weight [rows]; zeros and -inf of nothing."""
    total = tl.where(total == 0, 1.0, total)
    return acc / total[:, None], top + tl.log2(total)


@triton.jit
def join(part, log, acc, top, total):  # type: ignore[no-untyped-def]
    """Take a part, [rows, D] of weight 2 ** log [rows], into acc, top and total: all three, new.

    Parts come in their order. One that a row sees nothing of, -inf in log and finite, leaves the row's bits alone.
    """
    high = tl.maximum(top, log)
    shift = tl.where(high == float("-inf"), 0.0, high)
    keep, weight = tl.exp2(top - shift), tl.exp2(log - shift)
    acc = tl.fma(part, weight[:, None], acc * keep[:, None])  # by name: no compiler's choice, in either kernel
    return acc, high, tl.fma(total, keep, weight)


def join_parts(parts: Tensor, logs: Tensor, out: Tensor) -> None:
    """parts [rows, n_h, splits, hd] f32 of weights 2 ** logs [rows, n_h, splits] -> out [rows, n_h, hd].

    Where logs are -inf the part may be anything.
    """
    rows, n_h, splits, hd = parts.shape
    _join_kernel[(triton.cdiv(rows * n_h, 4),)](
        parts,
        logs,
        out,
        rows * n_h,
        splits,
        HEAD=hd,
        BLOCK_D=triton.next_power_of_2(hd),
        ROWS=4,
        num_warps=4,
        **overlapped(out),
    )


@triton.jit(do_not_specialize=["rows", "splits"])  # type: ignore[untyped-decorator]
def _join_kernel(  # type: ignore[no-untyped-def]
    parts, logs, out, rows, splits, HEAD: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, BLOCK_D)
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for split in range(splits):
        at = row * splits + split
        log = tl.load(logs + at, mask=row < rows, other=float("-inf"))
        written = (log != float("-inf"))[:, None] & (dim < HEAD)[None, :]
        part = tl.load(parts + at[:, None] * HEAD + dim[None, :], mask=written, other=0.0)
        acc, top, total = join(part, log, acc, top, total)
    acc = acc / tl.where(total == 0, 1.0, total)[:, None]
    real = (row < rows)[:, None] & (dim < HEAD)[None, :]
    tl.store(out + row[:, None] * HEAD + dim[None, :], acc.to(out.dtype.element_ty), mask=real)
