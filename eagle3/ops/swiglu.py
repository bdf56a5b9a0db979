"""The gated activation of an MLP."""

import torch.nn.functional as F
from torch import Tensor


def swiglu_torch(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2I], gate first, -> silu(gate) · up [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


swiglu = swiglu_torch
