"""The gated MLP of a decoder layer."""

import torch
from torch import Tensor, nn

from eagle3.nn.linear import Linear


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x)), gate and up fused."""

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        *,
        bias: bool = False,
        steady: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, intermediate, intermediate, bias=bias, steady=steady, dtype=dtype, device=device)
        self.down = Linear(intermediate, hidden, bias=bias, steady=steady, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, H] -> [T, H]."""
        out: Tensor = self.down(self.gate_up(x, gated=True))
        return out
