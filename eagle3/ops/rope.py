"""Rotary position embedding of queries and keys, halves paired: i with i + hd / 2."""

from torch import Tensor


def rope_torch(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, n, hd] turned by cos, sin [T, hd / 2], in their type, -> as x."""
    halves = x.reshape(*x.shape[:2], 2, -1).to(cos.dtype)  # [T, n, 2, hd / 2]
    turned, crossed = halves * cos[:, None, None], halves * sin[:, None, None]
    turned[:, :, 0] -= crossed[:, :, 1]
    turned[:, :, 1] += crossed[:, :, 0]
    return turned.flatten(2).to(x.dtype)


rope = rope_torch
