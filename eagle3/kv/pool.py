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
        self,
        groups: Sequence[tuple[KVLayout, torch.dtype]],
        pages: int,
        page: int,
        device: torch.device,
    ) -> None:
        self.pages = pages
        self.page = page
        self.groups = [
            torch.zeros(layout.layers, pages, page, layout.width, dtype=dtype, device=device)
            for layout, dtype in groups
        ]
        self._layers = [layer for group in self.groups for layer in group.unbind(0)]

    def layer(self, index: int) -> Tensor:
        """[pages, page, E] of a layer, counted over all groups in order."""
        return self._layers[index]
