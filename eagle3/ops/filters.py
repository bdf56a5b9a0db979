"""Temperature and the filters of sampling, over a whole vocabulary."""

import torch
from torch import Tensor

from eagle3.ops.select import argmax_torch


def filter_logits(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits [R, V] after temperature, top-k, top-p and min-p, in this order: -inf where cut.

    Parameters [R], each with a value that turns it off; a token stays iff
    temperature (0: greedy) a greedy row keeps its argmax alone,
    top_k (0: off) fewer than k tokens are more probable,
    top_p (1: off) the tokens more probable hold less than p of what top-k left,
    min_p (0: off) it has at least min_p of the most probable token's probability.
    So equals share their fate, and the most probable token stays. float64 stays so, all else becomes float32.
    """
    return cut(temper(logits, temperature), top_k, top_p, min_p)


def temper(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits [R, V] over temperature [R]; at 0 the argmax has 0 and all others -inf. NaN becomes -inf."""
    if logits.dtype is not torch.float64:
        logits = logits.float()
    warm = (temperature > 0)[:, None]
    scaled = logits / torch.where(warm, temperature[:, None], 1.0)
    scaled = scaled.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    best = torch.arange(logits.shape[-1], device=logits.device) == argmax_torch(logits)[:, None]
    return torch.where(warm, scaled, torch.where(best, 0.0, -torch.inf).to(scaled.dtype))


def cut(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Each filter keeps the logits from some value upward, so that the highest of the three decides."""
    vocabulary = logits.shape[-1]
    ranked = logits.sort(dim=-1, descending=True).values
    rank = torch.where(top_k > 0, top_k.clamp(max=vocabulary), vocabulary).long() - 1
    lowest = ranked.gather(-1, rank[:, None])  # [R, 1], of what top-k leaves
    mass = torch.where(ranked < lowest, -torch.inf, ranked).softmax(-1).cumsum(-1, dtype=torch.float64)
    more = (mass < top_p.double()[:, None]).sum(-1).clamp(max=vocabulary - 1)
    more = torch.where(top_p < 1, more, vocabulary - 1)
    lowest = torch.maximum(lowest, ranked.gather(-1, more[:, None]))
    lowest = torch.maximum(lowest, ranked[:, :1] + min_p.to(logits.dtype).log()[:, None])
    return torch.where(logits < lowest, -torch.inf, logits)
