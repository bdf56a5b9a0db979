"""The frozen target beside the head: features and soft labels of a batch, never V wide for all of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.kv.meta import PromptMeta
from eagle3.kv.pool import KVLayout, KVPool
from eagle3.models.decoder import Decoder
from eagle3.spec.capture import Capture
from eagle3.train.packing import Batch
from eagle3.train.soft_loss import CHUNK

_PAGE = 16


@dataclass(frozen=True)
class Labels:
    """What the target says of every token of a batch, T rows."""

    captured: Tensor  # [T, C·H]; written over by the next batch
    p: Tensor  # [T, Vd], softmax of the draft vocabulary's logits, float32 at least
    best: Tensor  # [T] i64, the argmax over V
    known: Tensor  # [T] bool, whether the head can guess it


class ScratchPool(KVPool):
    """One layer's pages for all layers: within a pass each layer reads only what it has just written."""

    def __init__(self, layout: KVLayout, dtype: torch.dtype, pages: int, device: torch.device) -> None:
        one = KVLayout(1, layout.kv_heads, layout.head_dim)
        super().__init__([(one, dtype)], pages, _PAGE, device)

    def layer(self, index: int) -> Tensor:
        """[pages, page, E], whatever the layer."""
        return super().layer(0)


class Teacher:
    """A target, the layers that the head reads and the tokens that it can guess."""

    def __init__(self, target: Decoder, layers: Sequence[int], vocabulary: Tensor | None) -> None:
        """`vocabulary` [Vd]: target ids in the order of draft ids; None: all of them."""
        self.target, self.layers = target, tuple(layers)
        device = target.embed.weight.device
        self.vocabulary = None if vocabulary is None else vocabulary.to(device)
        member = torch.zeros(target.facts.vocab, dtype=torch.bool, device=device)
        member[slice(None) if self.vocabulary is None else self.vocabulary] = True
        self._member = member
        self._capture: Capture | None = None
        self._pool: ScratchPool | None = None

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Labels:
        """One pass over all documents. (Not in inference mode, whose tensors cannot be learnt from.)"""
        target, weight = self.target, self.target.embed.weight
        count = batch.ids.shape[0]
        if self._capture is None or self._capture.hidden.shape[0] < count:
            self._capture = Capture(self.layers, count, target.facts.hidden, weight.dtype, weight.device)
        pages, meta = self._meta(batch)
        if self._pool is None or self._pool.pages < pages:
            self._pool = ScratchPool(target.kv_layout, weight.dtype, pages, weight.device)
        hidden = target(batch.ids, batch.positions, self._pool, meta, self._capture)
        return Labels(self._capture.hidden[:count], *self._labels(hidden))

    def _meta(self, batch: Batch) -> tuple[int, PromptMeta]:
        """How many pages the documents take, and where each of them is: from a page of its own on."""
        device = batch.ids.device
        sizes = torch.tensor(batch.lengths)
        pages = (sizes + _PAGE - 1) // _PAGE
        first = 1 + pages.cumsum(0) - pages  # page 0 is the dummy
        width = torch.arange(int(pages.max()))
        table = torch.where(width < pages[:, None], first[:, None] + width, 0)
        cu_q = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        used = 1 + int(pages.sum())
        write_at = first.to(device)[batch.document] * _PAGE + batch.positions
        cu_q, sizes, table = (t.int().to(device) for t in (cu_q, sizes, table))
        meta = PromptMeta(write_at, cu_q, sizes, table, max_q=max(batch.lengths))
        return used, meta

    def _labels(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        size = len(self._member) if self.vocabulary is None else len(self.vocabulary)
        p = torch.empty(hidden.shape[0], size, dtype=wide, device=hidden.device)
        best = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
        for at in range(0, hidden.shape[0], CHUNK):
            rows = slice(at, at + CHUNK)
            logits = self.target.logits(hidden[rows])  # [R, V]
            best[rows] = logits.argmax(1)
            kept = logits if self.vocabulary is None else logits[:, self.vocabulary]
            p[rows] = kept.to(wide).softmax(1)
        return p, best, self._member[best]
