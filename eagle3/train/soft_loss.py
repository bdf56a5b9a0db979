"""Cross-entropy of a head's logits against a target's soft labels, a chunk of rows at a time.

The gradient is made along with the loss, so that no logits are kept for the way back.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK = 1024  # rows whose logits stand in memory at once


class _SoftLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, weight: Tensor, p: Tensor, m: Tensor, ahead: int, wanted: bool) -> Any:  # noqa: ANN401
        wide = torch.promote_types(out.dtype, torch.float32)
        loss = torch.zeros((), dtype=wide, device=out.device)
        guess = torch.empty(out.shape[0], dtype=torch.int64, device=out.device)
        d_out = torch.empty_like(out) if wanted else None
        learns = wanted and weight.requires_grad
        d_weight = torch.zeros_like(weight, dtype=wide) if learns else None
        last = p.shape[0] - 1
        for at in range(0, out.shape[0], CHUNK):
            rows = slice(at, at + CHUNK)
            part = out[rows]
            logits = (part @ weight.T).to(wide)  # [R, Vd]
            label = p[torch.arange(at + ahead, at + ahead + part.shape[0], device=p.device).clamp_max(last)].to(wide)
            guess[rows] = logits.argmax(1)
            total = logits.logsumexp(1, keepdim=True)
            counts = m[rows, None].to(wide)
            loss += ((total - logits) * label * counts).sum()
            if d_out is not None:
                d_logits = ((logits - total).exp_().sub_(label).mul_(counts)).to(out.dtype)
                d_out[rows] = d_logits @ weight
                if d_weight is not None:
                    d_weight += d_logits.T @ part
        ctx.save_for_backward(d_out, None if d_weight is None else d_weight.to(weight.dtype))
        ctx.mark_non_differentiable(guess)
        return loss, guess

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        d_out, d_weight = ctx.saved_tensors
        d_out, d_weight = (None if d is None else d * grads[0].to(d.dtype) for d in (d_out, d_weight))
        return d_out, d_weight, None, None, None, None


def soft_loss(out: Tensor, weight: Tensor, p: Tensor, m: Tensor, ahead: int) -> tuple[Tensor, Tensor]:
    """Σ over rows t of m[t] · (−Σ p[t + ahead] · log softmax(out[t] @ weight.T)), and each row's argmax [T].

    out [T, H], weight [Vd, H], p [T, Vd] summing to 1 in each row, m [T]. Of the guesses no gradient comes.
    """
    wanted = torch.is_grad_enabled() and (out.requires_grad or weight.requires_grad)
    loss, guess = _SoftLoss.apply(out, weight, p, m, ahead, wanted)  # type: ignore[no-untyped-call]
    return loss, guess
