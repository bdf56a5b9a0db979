"""Token embedding, which may also be the output head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Module):
    """weight [V, H]."""

    def __init__(self, vocab: int, hidden: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, hidden, dtype=dtype, device=device))

    def forward(self, ids: Tensor) -> Tensor:
        """ids [T] -> [T, H]."""
        return F.embedding(ids, self.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, H] -> [R, V], the weight read as an output head (tied embeddings)."""
        return F.linear(hidden, self.weight)
