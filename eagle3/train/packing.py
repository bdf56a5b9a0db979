"""Samples into rows of equal length: who lies where in which epoch, and the tensors of a pass."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import torch
from torch import Tensor

from eagle3.train.samples import Sample

Row = tuple[int, ...]  # indices of the samples that share a row
_OPEN = 32  # rows that are filled at the same time
_ALIGNED = 16  # bytes, where a tensor may begin


@dataclass(frozen=True)
class Batch:
    """B rows of L tokens, flat: T = B·L. Documents lie one behind the other; what is left of a row is one more.

    A document's last token is never at mask 1: no target stands behind it.
    """

    rows: int  # B
    lengths: tuple[int, ...]  # of all documents in order, the paddings too; host integers
    samples: tuple[tuple[int, ...], ...]  # the ids of all documents in order, none of a padding
    ids: Tensor  # [T] i64
    positions: Tensor  # [T] i64, in the document
    left: Tensor  # [T] i64, tokens behind this one in its document
    mask: Tensor  # [T] bool, the target wrote this token
    document: Tensor  # [T] i64
    asked: Tensor  # [M] i64, ascending: the tokens at mask 1, and the one before each run of them in its document

    def ahead(self, values: Tensor, steps: int | Tensor) -> Tensor:
        """values [T] as seen `steps` tokens further on in the same document; 0 past its end.

        Steps [S, 1] give [S, T].
        """
        at = torch.arange(values.shape[0], device=values.device) + steps
        return values[at.clamp_max_(values.shape[0] - 1)].masked_fill_(self.left < steps, 0)


def batch_of(rows: Sequence[Sequence[Sample]], length: int, device: torch.device) -> Batch:
    """The tensors of a pass over rows of `length` tokens; a row may be empty."""
    ids, written = array("q"), torch.zeros(len(rows) * length, dtype=torch.bool)
    lengths: list[int] = []
    inside: list[tuple[int, ...]] = []
    for i, row in enumerate(rows):
        for sample in row:
            for start, end in sample.answers:
                written[len(ids) + start : len(ids) + min(end, len(sample.ids) - 1)] = True
            ids.extend(sample.ids)
            lengths.append(len(sample.ids))
            inside.append(sample.ids)
        room = (i + 1) * length - len(ids)
        assert room >= 0
        ids.extend([0] * room)
        lengths += [room] * (room > 0)
        inside += [()] * (room > 0)
    sizes = torch.tensor(lengths)
    document = torch.repeat_interleave(torch.arange(len(lengths)), sizes)
    positions = torch.arange(len(ids)) - (sizes.cumsum(0) - sizes)[document]
    left = sizes[document] - 1 - positions
    wanted = written.clone()
    wanted[:-1] |= written[1:] & (positions[1:] > 0)
    asked = wanted.nonzero()[:, 0]
    tensors = sent([torch.frombuffer(ids, dtype=torch.int64), positions, left, written, document, asked], device)
    return Batch(len(rows), tuple(lengths), tuple(inside), *tensors)


def sent(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of the host on a device, in one copy that the host does not wait for."""
    starts = [0, *accumulate(-(-t.nbytes // _ALIGNED) * _ALIGNED for t in tensors)]
    spans = [slice(start, start + t.nbytes) for start, t in zip(starts, tensors, strict=False)]
    host = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    for span, t in zip(spans, tensors, strict=True):
        host[span] = t.contiguous().view(-1).view(torch.uint8)
    there = host.to(device, non_blocking=True)
    return [there[span].view(t.dtype).view(t.shape) for span, t in zip(spans, tensors, strict=True)]


def pack(order: Sequence[int], lengths: Sequence[int], length: int) -> list[Row]:
    """Samples in the given order into rows: each into the open row with the least room for it.

    When many are open the fullest is closed.
    """
    done: list[Row] = []
    opened: list[tuple[list[int], int]] = []
    for sample in order:
        size = lengths[sample]
        fits = [(room, i) for i, (_, room) in enumerate(opened) if room >= size]
        at = min(fits)[1] if fits else None
        if at is None:
            if len(opened) == _OPEN:
                fullest = min(range(_OPEN), key=lambda i: opened[i][1])
                done.append(tuple(opened.pop(fullest)[0]))
            opened.append(([sample], length - size))
        else:
            row, room = opened[at]
            row.append(sample)
            opened[at] = row, room - size
    return done + [tuple(row) for row, _ in opened]


class Schedule:
    """All rows of a run as one sequence over its epochs, each shuffled by (seed, epoch) and nothing else.

    So a run's place in its data is its count of updates alone.
    """

    def __init__(self, lengths: Sequence[int], length: int, *, seed: int, epochs: int, per_update: int) -> None:
        self.lengths, self.length, self.seed, self.per_update = lengths, length, seed, per_update
        self._starts = [0]
        for epoch in range(epochs):
            self._starts.append(self._starts[-1] + len(self.epoch(epoch)))
        self._kept: tuple[int, list[Row]] = (-1, [])

    @property
    def updates(self) -> int:
        """How many updates the epochs make; the last is filled up with empty rows."""
        return -(-self._starts[-1] // self.per_update)

    def epoch(self, epoch: int) -> list[Row]:
        """The rows of one epoch."""
        order = list(range(len(self.lengths)))
        Random(f"{self.seed} {epoch}").shuffle(order)
        return pack(order, self.lengths, self.length)

    def of_update(self, update: int) -> list[Row]:
        """The rows of an update, `per_update` of them."""
        return [self._row(i) for i in range(update * self.per_update, (update + 1) * self.per_update)]

    def epochs_at(self, update: int) -> float:
        """How many epochs have gone by before an update."""
        row = min(update * self.per_update, self._starts[-1])
        epoch = next(e for e, end in enumerate(self._starts[1:]) if row <= end)
        return epoch + (row - self._starts[epoch]) / (self._starts[epoch + 1] - self._starts[epoch])

    def _row(self, index: int) -> Row:
        if index >= self._starts[-1]:
            return ()
        epoch = next(e for e, end in enumerate(self._starts[1:]) if index < end)
        if self._kept[0] != epoch:
            self._kept = epoch, self.epoch(epoch)
        return self._kept[1][index - self._starts[epoch]]


def chunks(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """`size` rows at a time; the last ones filled up with empty rows."""
    for at in range(0, len(rows), size):
        part = list(rows[at : at + size])
        yield part + [()] * (size - len(part))
