"""A projection, possibly several that share their input, fused along the rows of one weight."""

import torch
from torch import Tensor, nn

from eagle3.ops.linear import linear


class Linear(nn.Module):
    """weight [sum(outs), in] and, if asked for, bias [sum(outs)]; `outs` are the rows of each fused part.

    `steady`: a row's bits do not depend on how many rows there are.
    """

    def __init__(
        self,
        in_features: int,
        *outs: int,
        bias: bool = False,
        steady: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.outs = outs
        self.steady = steady
        self.weight = nn.Parameter(torch.empty(sum(outs), in_features, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.empty(sum(outs), dtype=dtype, device=device)) if bias else None

    def forward(self, x: Tensor, *, gated: bool = False) -> Tensor:
        """x [T, in] -> [T, sum(outs)], or with `gated` silu of the first of two parts times the second."""
        return linear(x, self.weight, self.bias, gated=gated, steady=self.steady)
