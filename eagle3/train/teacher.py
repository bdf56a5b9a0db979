"""The frozen target beside the head: features and soft labels of a batch, never V wide for all of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.kv.meta import PromptMeta
from eagle3.kv.pool import KVLayout, KVPool
from eagle3.models.decoder import Decoder
from eagle3.ops.select import argmax
from eagle3.spec.capture import Capture
from eagle3.train.packing import Batch, sent
from eagle3.train.soft_loss import chunks_of

SCRATCH_PAGE = 16  # entries
Stored = Callable[[Batch], tuple[Tensor, Tensor]]  # captured [T, C·H] and the final hidden [T, H] of a batch


@dataclass(frozen=True)
class Labels:
    """What the target says of a batch: features of all T tokens, and its guess behind the M tokens asked for.

    Row m of the labels is said at asked[m] + 1. Features and p are written over by the next batch.
    """

    captured: Tensor  # [T, C·H]
    p: Tensor  # [M, Vd], softmax of the draft vocabulary's logits, float32 at least
    best: Tensor  # [M] i64, the argmax over V
    known: Tensor  # [M] bool, whether the head can guess it


class ScratchPool(KVPool):
    """One layer's pages for all layers: within a pass each layer reads only what it has just written."""

    def __init__(self, layout: KVLayout, dtype: torch.dtype, pages: int, device: torch.device) -> None:
        one = KVLayout(1, layout.kv_heads, layout.head_dim)
        super().__init__([(one, dtype)], pages, SCRATCH_PAGE, device)

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
        self._p: Tensor | None = None  # [T, Vd]
        self.stored: Stored | None = None

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Labels:
        """Of all documents. (Not in inference mode, whose tensors cannot be learnt from.)"""
        captured, hidden = self.features(batch) if self.stored is None else self.stored(batch)
        return Labels(captured, *self._labels(hidden.index_select(0, batch.asked + 1), batch.ids.shape[0]))

    def read(self, stored: Stored) -> None:
        """From now on read features, and give back what only making them needs: layers, pages, room."""
        self.stored = stored
        self._capture = self._pool = None
        del self.target.layers[:]

    @torch.no_grad()
    def features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """By the target's own layers: captured [T, C·H], on a GPU written over by the next batch, and the final hidden
        [T, H].

        On a CPU each document runs alone, as the order in which its library sums depends on all that is in a pass: so
        a document's bits are its own, wherever it lies. Paddings are zeros there.
        """
        if batch.ids.is_cuda:
            return self._pass(batch.ids, batch.positions, batch.lengths)
        size, weight = self.target.facts.hidden, self.target.embed.weight
        captured, hidden = (weight.new_zeros(len(batch.ids), n * size) for n in (len(self.layers), 1))
        at = 0
        for ids, n in zip(batch.samples, batch.lengths, strict=True):
            rows = slice(at, at + n)
            if ids:
                captured[rows], hidden[rows] = self._pass(batch.ids[rows], batch.positions[rows], (n,))
            at += n
        return captured, hidden

    def _pass(self, ids: Tensor, positions: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Of documents of these lengths, one behind the other."""
        target, weight = self.target, self.target.embed.weight
        count = ids.shape[0]
        if self._capture is None or self._capture.hidden.shape[0] < count:
            self._capture = Capture(self.layers, count, target.facts.hidden, weight.dtype, weight.device)
        pages, meta = self._meta(lengths, ids.device)
        if self._pool is None or self._pool.pages < pages:
            self._pool = ScratchPool(target.kv_layout, weight.dtype, pages, weight.device)
        hidden = target(ids, positions, self._pool, meta, self._capture)
        return self._capture.hidden[:count], hidden

    def _meta(self, lengths: tuple[int, ...], device: torch.device) -> tuple[int, PromptMeta]:
        """How many pages the documents take, and where each of them is: from a page of its own on."""
        sizes = torch.tensor(lengths)
        pages = (sizes + SCRATCH_PAGE - 1) // SCRATCH_PAGE
        first = 1 + pages.cumsum(0) - pages  # page 0 is the dummy
        width = torch.arange(int(pages.max()))
        table = torch.where(width < pages[:, None], first[:, None] + width, 0)
        ends = sizes.cumsum(0)
        cu_q = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
        shift = first * SCRATCH_PAGE - (ends - sizes)  # from a document's rows to its entries
        write_at = torch.arange(sum(lengths)) + shift.repeat_interleave(sizes)
        host = [write_at, cu_q.int(), sizes.int(), table.int()]
        write_at, cu_q, sizes, table = sent(host, device)
        return 1 + int(pages.sum()), PromptMeta(write_at, cu_q, sizes, table, max_q=max(lengths))

    def _labels(self, hidden: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of hidden [M, H]. The room for p is made for `most` rows, so that it need not be made again for every M."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        count = hidden.shape[0]
        size = len(self._member) if self.vocabulary is None else len(self.vocabulary)
        if self._p is None or self._p.shape[0] < most:
            self._p = torch.empty(most, size, dtype=wide, device=hidden.device)
        p, best = self._p[:count], torch.empty(count, dtype=torch.int64, device=hidden.device)
        for rows in chunks_of(count, self.target.embed.weight):
            logits = self.target.logits(hidden[rows])  # [R, V]
            best[rows] = argmax(logits)
            kept = logits if self.vocabulary is None else logits.index_select(1, self.vocabulary)
            torch.softmax(kept, 1, dtype=wide, out=p[rows])
        return p, best, self._member[best]
