"""Paged key/value memory: layer groups of one layout each, all under one page table."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KVLayout:
    """Layers whose entries look alike: E = 2 · kv_heads · head_dim values, keys before values."""

    layers: int
    kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """E, values in one layer's entry."""
        return 2 * self.kv_heads * self.head_dim


class KVPool:
    """`groups[g]` is [L_g, pages, page, E_g]. Page 0 is the dummy: padding rows write there, no request owns it."""

    def __init__(
        self, layouts: Sequence[KVLayout], pages: int, page: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.page = page
        self.layouts = tuple(layouts)
        self.groups = [
            torch.zeros(layout.layers, pages, page, layout.width, dtype=dtype, device=device)
            for layout in layouts
        ]
        self._layers = [group[i] for group in self.groups for i in range(group.shape[0])]

    def layer(self, index: int) -> Tensor:
        """[pages, page, E] of a layer, counted over all groups in order."""
        return self._layers[index]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one entry takes over all layers."""
        return sum(g.shape[0] * g.shape[3] * g.element_size() for g in self.groups)
