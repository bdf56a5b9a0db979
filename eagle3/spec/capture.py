"""Keeps what the head reads of the target: the outputs of a few layers, side by side, for every row of a forward."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3.errors import CapacityError


class Capture:
    """`hidden` [rows, C_l · H] at a fixed address; column block j holds the j-th of `layers`, -1 the final norm's.

    An instance is the decoder's `on_layer` callback.
    """

    def __init__(self, layers: Sequence[int], rows: int, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        assert len(set(layers)) == len(layers)
        self.layers = tuple(layers)
        self.width = hidden
        self.hidden = torch.zeros(rows, len(layers) * hidden, dtype=dtype, device=device)
        self._block = {layer: j for j, layer in enumerate(self.layers)}

    def __call__(self, layer: int, hidden: Tensor, residual: Tensor | None) -> None:
        """Copy the output of a layer, hidden + residual [T, H], to its block's first T rows.

        Raises `CapacityError` where T is more than the buffer was made for.
        """
        if (j := self._block.get(layer)) is None:
            return
        if hidden.shape[0] > self.hidden.shape[0]:
            raise CapacityError(f"{hidden.shape[0]} rows to capture, the buffer holds {self.hidden.shape[0]}")
        rows = self.hidden[: hidden.shape[0], j * self.width : (j + 1) * self.width]
        if residual is None:
            rows.copy_(hidden)
        else:
            torch.add(hidden, residual, out=rows)
