"""Rotary position embedding of queries and keys, halves paired: i with i + hd / 2."""

import torch
from torch import Tensor


def rope_torch(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, n, hd] turned by cos, sin [T, hd / 2], in their type, -> as x."""
    low, high = x.to(cos.dtype).chunk(2, 2)  # [T, n, hd / 2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], 2).to(x.dtype)


rope = rope_torch
