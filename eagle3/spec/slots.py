"""A request's state on the device: one row a request, held for its life, and a dummy row for padding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.config.shape import DraftShape
from eagle3.ops.slot_rows import Placed, SlotRows, read_slots, write_slots
from eagle3.spec.adjust import Adjustments
from eagle3.spec.batch import Sampling
from eagle3.spec.tree import Tree, chain, kary


@dataclass(frozen=True)
class SlotState:
    """The rows of B requests."""

    tree: Tree  # node 0 is the root: the last token emitted, its K/V not yet written
    has_tree: Tensor  # [B] bool; without one only the root is verified
    length: Tensor  # [B] i64, committed entries = the root's position
    sampling: Sampling
    probs: Tensor | None  # [B, D, Vd] f32, what the tree's tokens were drawn from; None: they were not drawn


class TreeSlots:
    """S rows and a dummy, the last. A row at rest holds a chain, the dummy a K-ary tree of length 0."""

    def __init__(
        self, slots: int, shape: DraftShape, device: torch.device, *, drawn_from: int | None = None, vocab: int = 0
    ) -> None:
        """`drawn_from` is Vd where drafts are drawn, whose distributions then have to be kept; `vocab` is V."""
        self.dummy = slots
        self.rest = chain(1, shape.nodes, device)
        self._links = shape.top_k > 1  # a chain's are always those at rest
        self.tree = chain(slots + 1, shape.nodes, device)
        for row, value in zip(self.tree.tensors(), kary(shape.nodes, shape.top_k, device).tensors(), strict=True):
            row[slots] = value[0]
        self.has_tree = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        self.length = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.probs = None
        if drawn_from is not None:
            self.probs = torch.zeros(slots + 1, shape.depth, drawn_from, device=device)
        self.adjust = Adjustments(slots, vocab, device)
        self.sampling = Sampling(
            temperature=torch.zeros(slots + 1, device=device),
            top_k=torch.zeros(slots + 1, dtype=torch.int32, device=device),
            top_p=torch.ones(slots + 1, device=device),
            min_p=torch.zeros(slots + 1, device=device),
            seed=torch.zeros(slots + 1, dtype=torch.int64, device=device),
        )

    @property
    def _rows(self) -> SlotRows:
        return SlotRows(*self.tree.tensors(), self.has_tree, self.length, *self.sampling.tensors())

    def read(self, ids: Tensor, table: Tensor, page: int) -> tuple[SlotState, Placed]:
        """Copies of the rows `ids` [B], and where their nodes stand under the block table [B, M] i32."""
        rows, placed = read_slots(self._rows, ids, table, page)
        probs = None if self.probs is None else self.probs[ids]
        return SlotState(Tree(*rows[:5]), rows.has_tree, rows.length, Sampling(*rows[7:]), probs), placed

    def write(
        self, ids: Tensor, keep: Tensor, tree: Tree, length: Tensor, *, has_tree: bool, probs: Tensor | None
    ) -> None:
        """Set the rows `ids` [B] where `keep` [B]; elsewhere they stay as they are."""
        write_slots(self._rows, ids, keep, tree.tensors(), length, has_tree, self._links)
        if self.probs is not None and probs is not None:
            self.probs[ids] = torch.where(keep[:, None, None], probs, self.probs[ids])

    def admit(self, ids: Tensor, sampling: Sampling) -> None:
        """Give the rows `ids` [C] their requests' sampling parameters."""
        for row, new in zip(self.sampling.tensors(), sampling.tensors(), strict=True):
            row[ids] = new

    def restore(self, ids: Tensor) -> None:
        """Bring the rows `ids` of requests that left back to rest."""
        for row, rest in zip(self.tree.tensors(), self.rest.tensors(), strict=True):
            row[ids] = rest
        # filled, not assigned: a number on the right would be copied from the host, and waited for
        for rows in (self.length, self.has_tree, self.probs):
            if rows is not None:
                rows.index_fill_(0, ids, 0)
        self.adjust.restore(ids)
