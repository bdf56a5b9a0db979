"""A projection, possibly several that share their input, fused along the rows of one weight."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """weight [sum(outs), in] and, if asked for, bias [sum(outs)]; `outs` are the rows of each fused part."""

    def __init__(
        self, in_features: int, *outs: int, bias: bool = False, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.outs = outs
        self.weight = nn.Parameter(torch.empty(sum(outs), in_features, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.empty(sum(outs), dtype=dtype, device=device)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, sum(outs)]."""
        return F.linear(x, self.weight, self.bias)
