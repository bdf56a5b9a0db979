"""Cross-entropy of rows of logits against soft labels, their argmax, and the gradient in the logits' place."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel
from eagle3.ops.select import index_of, key_of


def soft_cross_entropy_torch(logits: Tensor, p: Tensor, counts: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor]:
    """logits, p [R, Vd], counts [R] bool -> each row's −Σ p · log softmax(logits) [R], and argmax [R] i64.

    A row of p sums to 1. A row that does not count has loss 0. The losses are float32 at least. With `gradient` the
    logits are written over by that of the losses' sum. Of equal logits the lowest index is the argmax.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    values, kept = logits.to(wide), counts[:, None]
    total = values.logsumexp(1, keepdim=True)
    losses = ((total - values) * p).sum(1).where(counts, 0.0)
    best = values.argmax(1)
    if gradient:
        logits.copy_((values - total).exp_().sub_(p).where(kept, 0.0))
    return losses, best


def soft_cross_entropy_triton(logits: Tensor, p: Tensor, counts: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor]:
    """As `soft_cross_entropy_torch`, in one launch that reads logits twice and labels once; no float64."""
    rows, size = logits.shape
    assert p.shape == logits.shape
    assert counts.shape == (rows,)
    assert (logits.stride(1), p.stride(1), counts.stride(0)) == (1, 1, 1)
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    best = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return losses, best
    block = min(4096, triton.next_power_of_2(size))
    _soft_cross_entropy_kernel[(rows,)](
        logits,
        p,
        counts,
        losses,
        best,
        logits.stride(0),
        p.stride(0),
        size,
        GRADIENT=gradient,
        BLOCK=block,
        num_warps=max(1, block // 512),
    )
    return losses, best


@triton.jit  # type: ignore[untyped-decorator]
def _soft_cross_entropy_kernel(  # type: ignore[no-untyped-def]
    logits,
    p,
    counts,
    losses,
    best,
    stride,
    p_stride,
    size,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    p += row * p_stride
    index = tl.arange(0, BLOCK)
    top, at = tl.full([BLOCK], float("-inf"), tl.float32), index  # a lane's largest so far, and where
    total = tl.zeros([BLOCK], tl.float32)  # Σ exp(value - top) of a lane
    for first in range(0, size, BLOCK):
        column = first + index
        value = tl.load(logits + column, mask=column < size, other=float("-inf")).to(tl.float32)
        higher = value > top  # never of an equal: the lowest index stays
        at = tl.where(higher, column, at)
        raised = tl.where(higher, value, top)
        base = tl.where(raised == float("-inf"), 0.0, raised)  # -inf less itself would be NaN
        total = total * tl.exp(top - base) + tl.exp(value - base)
        top = raised
    tl.store(best + row, index_of(tl.max(key_of(top, at), 0)))
    peak = tl.max(top, 0)
    level = peak + tl.log(tl.sum(total * tl.exp(top - peak), 0))
    kept = tl.load(counts + row) != 0
    loss = tl.zeros([BLOCK], tl.float32)
    if kept:
        for first in range(0, size, BLOCK):
            column = first + index
            inside = column < size
            below = tl.load(logits + column, mask=inside, other=0.0).to(tl.float32) - level
            label = tl.load(p + column, mask=inside, other=0.0).to(tl.float32)
            loss -= label * below
            if GRADIENT:
                tl.store(logits + column, (tl.exp(below) - label).to(logits.dtype.element_ty), mask=inside)
    elif GRADIENT:
        for first in range(0, size, BLOCK):
            column = first + index
            tl.store(logits + column, tl.zeros([BLOCK], logits.dtype.element_ty), mask=column < size)
    tl.store(losses + row, tl.sum(loss, 0))


def soft_cross_entropy(logits: Tensor, p: Tensor, counts: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor]:
    """As `soft_cross_entropy_torch`, by the kernel on a GPU."""
    rows = soft_cross_entropy_triton if by_kernel(logits) else soft_cross_entropy_torch
    return rows(logits, p, counts, gradient=gradient)
