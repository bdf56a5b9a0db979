"""Root-mean-square norm."""

import torch
from torch import Tensor, nn

from eagle3.ops.rms_norm import rms_norm


class RMSNorm(nn.Module):
    """weight [H]."""

    def __init__(self, hidden: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden, dtype=dtype, device=device))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [T, H] -> (norm of x + residual, x + residual)."""
        return rms_norm(x, self.weight, self.eps, residual)
