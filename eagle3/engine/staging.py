"""Prompt passes of fixed sizes: all that one reads of the host lies in one tensor, and padding changes nothing."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from eagle3.kv.meta import PromptMeta
from eagle3.spec.batch import Contexts, Draws, Sampling

_ALIGNED = 16  # bytes; kernels are compiled for pointers of this alignment


@dataclass(frozen=True, order=True)
class PassSize:
    """What a padded pass depends on beside its tensors' values. No more requests than rows: each has one at least."""

    rows: int  # T
    requests: int  # C
    ending: bool
    pools: int
    width: int  # M

    def __post_init__(self) -> None:
        assert 1 <= self.requests <= self.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor that holds all fields."""
        return sum(_padded(dtype, shape) for dtype, shape in self._fields())

    def view(self, data: Tensor) -> Contexts:
        """The fields of a pass as views of `data`, `nbytes` u8 or more.

        Rows that are greedy, draw or filter may be side by side. Where nothing ends, what is drawn is not used.
        """
        views, at = [], 0
        for dtype, shape in self._fields():
            views.append(data[at : at + prod(shape) * dtype.itemsize].view(dtype).view(shape))
            at += _padded(dtype, shape)
        ids, following, positions, *rest = views
        metas = []
        for i in range(self.pools):
            write_at, cu_q, kv_lens, table = rest[4 * i : 4 * i + 4]
            metas.append(PromptMeta(write_at, cu_q, kv_lens, table, max_q=self.rows))
        predict, slots, last, given, *sampling = rest[4 * self.pools :]
        return Contexts(
            ids=ids,
            following=following,
            positions=positions,
            metas=tuple(metas),
            predict=predict,
            slots=slots,
            last=last,
            given=given,
            sampling=Sampling(*sampling),
            draws=Draws(greedy=not self.ending, filtered=self.ending),
            ending=self.ending,
        )

    def _fields(self) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        """Types and shapes, in the order of `tensors`."""
        count = self.requests
        row, request = (torch.int64, (self.rows,)), (torch.int64, (count,))
        whole, real = (torch.int32, (count,)), (torch.float32, (count,))
        meta = [row, (torch.int32, (count + 1,)), whole, (torch.int32, (count, self.width))]
        sampling = [real, whole, real, real, request]
        return [row] * 3 + meta * self.pools + [request, request, (torch.bool, (count,)), request, *sampling]


def _padded(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return -(-prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED


def tensors(batch: Contexts) -> list[Tensor]:
    """The fields that a pass reads of the host, in a fixed order."""
    metas = [t for m in batch.metas for t in (m.write_at, m.cu_q, m.kv_lens, m.table)]
    own = [batch.predict, batch.slots, batch.last, batch.given]
    return [batch.ids, batch.following, batch.positions, *metas, *own, *batch.sampling.tensors()]


def pad(batch: Contexts, into: Contexts, dummy: int, page: int) -> None:
    """Write a pass into a larger one that is all zeros, both on the host; `dummy` is the slot of padding.

    Padding rows belong to no request and write into page 0. Padding requests have no rows, emit nothing, write no
    slot, and their drafts' entries are page 0's.
    """
    for large, small in zip(tensors(into), tensors(batch), strict=True):
        large[tuple(slice(n) for n in small.shape)] = small
    rows, count = batch.ids.shape[0], batch.slots.shape[0]
    for meta in into.metas:
        meta.write_at[rows:] = torch.arange(into.ids.shape[0] - rows) % page
        meta.cu_q[count + 1 :] = rows
    if count < into.slots.shape[0]:
        into.predict[count:] = unread(batch, into)
    into.slots[count:] = dummy
    into.sampling.top_p[count:] = 1  # the dummy slot's, as it was


def unread(batch: Contexts, into: Contexts) -> int:
    """A row from which no request of `batch` predicts.

    The row after a prompt's end is given the token that follows, and where no prompt ends it is given its own again.
    Were a padding request to share a real one's row, its write could undo that one's. With fewer requests than rows
    there is always a row to spare: one of padding, or the first of a chunk of two rows or more.
    """
    if batch.ids.shape[0] < into.ids.shape[0]:
        return into.ids.shape[0] - 1
    begins: list[int] = batch.metas[0].cu_q[:-1].tolist()
    return next(row for row, last in zip(begins, batch.predict.tolist(), strict=True) if row < last)


def occupy(batch: Contexts, dummy: int, page: int) -> None:
    """Make a pass, on any device, as full as can be of chunks that change nothing: all in page 0 and `dummy`'s slot."""
    for tensor in tensors(batch):
        tensor.zero_()
    rows, count = batch.ids.shape[0], batch.slots.shape[0]
    for meta in batch.metas:
        share = min(rows // count, meta.table.shape[1] * page)
        meta.cu_q.copy_(share * torch.arange(count + 1, device=meta.cu_q.device))
        meta.kv_lens.fill_(share)
        meta.write_at.copy_(torch.arange(rows, device=meta.write_at.device) % page)
    batch.slots.fill_(dummy)
    batch.sampling.top_p.fill_(1)
