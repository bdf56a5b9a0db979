"""The gated MLP of a decoder layer."""

import torch
from torch import Tensor, nn

from eagle3.nn.linear import Linear
from eagle3.ops.swiglu import swiglu


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x)), gate and up fused."""

    def __init__(
        self, hidden: int, intermediate: int, *, bias: bool = False, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, intermediate, intermediate, bias=bias, dtype=dtype, device=device)
        self.down = Linear(intermediate, hidden, bias=bias, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, H] -> [T, H]."""
        out: Tensor = self.down(swiglu(self.gate_up(x)))
        return out
