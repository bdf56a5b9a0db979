"""Attention of training-time test: the keys of step 0 causally, and of each later step the row's own alone."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from eagle3.ops.own_keys import own_keys
from eagle3.train.packing import Batch, sent

_BLOCK = 128  # rows, and keys, that a kernel of FlexAttention takes at a time

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
        self.mask = block_mask(batch)

    def __call__(self, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """As `Attend`."""
        asked, k, v = (split(x, self.rows) for x in (q, keys[0], values[0]))
        how = {"block_mask": self.mask, "scale": self.scale, "enable_gqa": q.shape[1] > keys[0].shape[1]}
        out, aux = self.flex(asked, k, v, return_aux=AuxRequest(lse=True), **how)
        first, lse = (x.transpose(1, 2).flatten(0, 1) for x in (out, aux.lse))  # [T, n_h, hd], [T, n_h]
        return own_keys(q, first, lse, keys[1:], values[1:], self.scale) if len(keys) > 1 else first


def block_mask(batch: Batch) -> BlockMask:
    """Causal inside each document. Blocks are told apart on the host, where the documents' lengths are known."""
    document = batch.document.view(batch.rows, -1)  # [B, L]

    def visible(b: Tensor, _: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (row >= key) & (document[b, row] == document[b, key])

    sizes = torch.tensor(batch.lengths)
    here = torch.arange(len(sizes)).repeat_interleave(sizes).view(batch.rows, -1)
    length = here.shape[1]
    starts = torch.arange(0, length, _BLOCK)
    ends = (starts + _BLOCK - 1).clamp_max(length - 1)
    low, high = here[:, starts], here[:, ends]  # [B, n], the first and last document in each block
    causal = torch.ones(len(starts), len(starts)).tril() > 0  # query blocks by key blocks
    some = causal & (high[:, None, :] >= low[:, :, None])  # documents ascend along a row
    full = causal.tril(-1) & (low[:, None, :] == high[:, :, None]) & (ends - starts == _BLOCK - 1)[:, None]
    partly, wholly = (_listed(kind[:, None]) for kind in (some & ~full, full))
    count, index, full_count, full_index = sent([*partly, *wholly], document.device)
    return BlockMask.from_kv_blocks(
        count, index, full_count, full_index, BLOCK_SIZE=_BLOCK, mask_mod=visible, seq_lengths=(length, length)
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of key blocks [B, 1, n, n] that count for a query block: how many, and their indices, the others behind."""
    return blocks.sum(3).int(), blocks.byte().argsort(dim=3, descending=True, stable=True).int()


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)
