"""Token embedding, which may also be the output head."""

import torch
from torch import Tensor, nn

from eagle3.ops.gather import gather
from eagle3.ops.linear import linear


class Embedding(nn.Module):
    """weight [V, H]. `steady`: a row of logits has bits that do not depend on how many rows there are."""

    def __init__(
        self, vocab: int, hidden: int, *, steady: bool = False, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.steady = steady
        self.weight = nn.Parameter(torch.empty(vocab, hidden, dtype=dtype, device=device))

    def forward(self, ids: Tensor) -> Tensor:
        """ids [T] -> [T, H]."""
        return gather(self.weight, ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, H] -> [R, V], the weight read as an output head (tied embeddings)."""
        return linear(hidden, self.weight, None, steady=self.steady)
