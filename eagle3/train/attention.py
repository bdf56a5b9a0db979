"""Attention of training-time test: the keys of step 0 causally, and of each later step the row's own alone."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from eagle3.train.packing import Batch

# q [T, n_h, hd]; keys and values of steps 0…s, each [T, n_kv, hd] -> [T, n_h, hd]
Attend = Callable[[Tensor, list[Tensor], list[Tensor]], Tensor]


class StepCore:
    """A head layer's core over all steps of a batch; every call is one step further."""

    def __init__(self, attend: Attend) -> None:
        self.attend = attend
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, n_h, hd], k, v [T, n_kv, hd], turned for positions one further a step -> [T, n_h, hd]."""
        self.keys.append(k)
        self.values.append(v)
        return self.attend(q, self.keys, self.values)


def attend_of(batch: Batch, scale: float) -> Attend:
    """The attention for a batch: in blocks on a GPU, by a plain softmax on a CPU."""
    return BlockAttention(batch, scale) if batch.ids.is_cuda else PlainAttention(batch, scale)


def split(x: Tensor, rows: int) -> Tensor:
    """[T, n, hd] -> [B, n, L, hd]."""
    return x.view(rows, -1, *x.shape[1:]).transpose(1, 2)


class PlainAttention:
    """One softmax over [L, L] scores and s scores on the diagonal, float32 at least."""

    def __init__(self, batch: Batch, scale: float) -> None:
        self.rows, self.scale = batch.rows, scale
        document = batch.document.view(batch.rows, 1, -1, 1)
        causal = torch.ones(document.shape[2], document.shape[2], dtype=torch.bool, device=document.device).tril()
        self.visible = causal & (document == document.transpose(2, 3))  # [B, 1, L, L]

    def __call__(self, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """As `Attend`."""
        wide = torch.promote_types(q.dtype, torch.float32)
        group = q.shape[1] // keys[0].shape[1]
        k, v = ([split(x.to(wide).repeat_interleave(group, 1), self.rows) for x in xs] for xs in (keys, values))
        asked = split(q.to(wide), self.rows) * self.scale  # [B, n_h, L, hd]
        first = (asked @ k[0].transpose(2, 3)).masked_fill(~self.visible, -torch.inf)
        own = [(asked * key).sum(-1, keepdim=True) for key in k[1:]]
        weights = torch.cat([first, *own], 3).softmax(3)
        length = first.shape[3]
        out = weights[..., :length] @ v[0]
        for j, value in enumerate(v[1:]):
            out = out + weights[..., length + j, None] * value
        return out.transpose(1, 2).flatten(0, 1).to(q.dtype)


class BlockAttention:
    """FlexAttention over the keys of step 0, in blocks; the own keys of later steps join its softmax by its sum."""

    def __init__(self, batch: Batch, scale: float, *, compiled: bool = True) -> None:
        self.rows, self.scale = batch.rows, scale
        flex: Any = flex_attention
        self.flex = _compiled() if compiled else flex
        document = batch.document.view(batch.rows, -1)  # [B, L]
        length = document.shape[1]

        def visible(b: Tensor, _: Tensor, row: Tensor, key: Tensor) -> Tensor:
            return (row >= key) & (document[b, row] == document[b, key])

        self.mask = create_block_mask(visible, self.rows, None, length, length, device=document.device)

    def __call__(self, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """As `Attend`."""
        group = q.shape[1] // keys[0].shape[1]
        asked, k, v = (split(x, self.rows) for x in (q, keys[0], values[0]))
        how = {"block_mask": self.mask, "scale": self.scale, "enable_gqa": group > 1}
        first, aux = self.flex(asked, k, v, return_aux=AuxRequest(lse=True), **how)
        own = [split(x.repeat_interleave(group, 1), self.rows) for x in keys[1:]]
        scores = [(asked * key).sum(3, keepdim=True, dtype=torch.float32) * self.scale for key in own]
        weights = torch.cat([aux.lse[..., None], *scores], 3).softmax(3)  # [B, n_h, L, s + 1]
        out: Tensor = weights[..., :1] * first
        for j, value in enumerate(values[1:], 1):
            out = out + weights[..., j : j + 1] * split(value.repeat_interleave(group, 1), self.rows)
        return out.transpose(1, 2).flatten(0, 1).to(q.dtype)


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)
