"""Cross-entropy of a head's logits against a target's soft labels, a chunk of rows at a time.

The gradient is made along with the loss, so that no logits are kept for the way back.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from eagle3.ops.soft_cross_entropy import soft_cross_entropy

_CHUNK = {"cuda": 2**29}  # bytes of logits that stand in memory at once
_CHUNK_ELSEWHERE = 2**26
_FEWEST = 256  # rows of a chunk


def chunks_of(rows: int, weight: Tensor) -> Iterator[slice]:
    """Slices of rows, few enough for their logits by `weight` [V, H], but not too few for a good product."""
    size = max(_FEWEST, _CHUNK.get(weight.device.type, _CHUNK_ELSEWHERE) // (weight.shape[0] * weight.itemsize))
    for at in range(0, rows, size):
        yield slice(at, min(at + size, rows))


class _SoftLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, weight: Tensor, p: Tensor, at: Tensor, counts: Tensor, wanted: bool) -> Any:  # noqa: ANN401
        wide = torch.promote_types(out.dtype, torch.float32)
        loss = torch.zeros((), dtype=wide, device=out.device)
        guess = torch.empty(at.shape[0], dtype=torch.int64, device=out.device)
        d_out = torch.zeros_like(out) if wanted else None
        d_weight = None
        for rows in chunks_of(at.shape[0], weight):
            part = out.index_select(0, at[rows])
            logits = part @ weight.T  # [R, Vd]
            losses, guess[rows] = soft_cross_entropy(logits, p[rows], counts[rows], gradient=wanted)
            loss += losses.sum()
            if d_out is not None:
                d_out.index_copy_(0, at[rows], logits @ weight)
                if weight.requires_grad:
                    d_part = _wide_product(logits.T, part)
                    d_weight = d_part if d_weight is None else d_weight.add_(d_part)
        if wanted and weight.requires_grad:
            d_weight = torch.zeros_like(weight) if d_weight is None else d_weight.to(weight.dtype)
        ctx.save_for_backward(d_out, d_weight)
        ctx.mark_non_differentiable(guess)
        return loss, guess

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        d_out, d_weight = (None if d is None else d * grads[0].to(d.dtype) for d in ctx.saved_tensors)
        return d_out, d_weight, None, None, None, None


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, float32 at least, as it was summed where the device can."""
    wide = torch.promote_types(a.dtype, torch.float32)
    if a.is_cuda and a.dtype != wide:
        return torch.mm(a, b, out_dtype=wide)
    return (a @ b).to(wide)


def soft_loss(out: Tensor, weight: Tensor, p: Tensor, at: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Σ over rows m that count of −Σ p[m] · log softmax(out[at[m]] @ weight.T), and each row's argmax [M].

    out [T, H], weight [Vd, H], p [M, Vd] summing to 1 in each row, at [M] all distinct, counts [M] bool. Of the
    guesses no gradient comes.
    """
    wanted = torch.is_grad_enabled() and (out.requires_grad or weight.requires_grad)
    loss, guess = _SoftLoss.apply(out, weight, p, at, counts, wanted)  # type: ignore[no-untyped-call]
    return loss, guess
