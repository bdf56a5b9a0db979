"""Attention of training-time test: the keys of step 0 causally, and of each later step the row's own alone."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch._dynamo as dynamo
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

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
    """FlexAttention over the keys of all steps side by side; blocks without a visible pair are never read."""

    def __init__(self, batch: Batch, scale: float, *, compiled: bool = True) -> None:
        self.rows, self.scale = batch.rows, scale
        self.document = batch.document.view(batch.rows, -1)  # [B, L]
        flex: Any = flex_attention
        self.flex = _compiled() if compiled else flex
        self._masks: list[BlockMask] = []

    def __call__(self, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """As `Attend`."""
        k, v = (torch.cat([split(x, self.rows) for x in xs], 2) for xs in (keys, values))
        grouped = q.shape[1] != k.shape[1]
        mask = self._mask(len(keys))
        out: Tensor = self.flex(split(q, self.rows), k, v, block_mask=mask, scale=self.scale, enable_gqa=grouped)
        return out.transpose(1, 2).flatten(0, 1)

    def _mask(self, steps: int) -> BlockMask:
        """The mask over the keys of so many steps, [B, 1, L, steps·L]; layers share it."""
        document = self.document
        length = document.shape[1]

        def visible(b: Tensor, _: Tensor, row: Tensor, key: Tensor) -> Tensor:
            at = key % length
            first = (key < length) & (row >= at) & (document[b, row] == document[b, at])
            return first | ((key >= length) & (row == at))

        while len(self._masks) < steps:
            keys = (len(self._masks) + 1) * length
            made = create_block_mask(visible, self.rows, None, length, keys, device=document.device)
            self._masks.append(made)
        return self._masks[steps - 1]


@cache
def _compiled() -> Callable[..., Any]:
    # every step has keys of another length, learning and evaluating are compiled apart: more kinds than are kept
    # otherwise, and what is not compiled makes all scores at once
    dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, 64)
    return torch.compile(flex_attention, dynamic=False)
