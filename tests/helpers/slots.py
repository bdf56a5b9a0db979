"""Looks into slots as a step does."""

from collections.abc import Sequence

import torch

from eagle3.spec.slots import SlotState, TreeSlots


def held(slots: TreeSlots, ids: Sequence[int]) -> SlotState:
    """What the rows `ids` hold."""
    table = torch.zeros(len(ids), 1, dtype=torch.int32)  # one page, longer than any sequence
    return slots.read(torch.tensor(ids), table, 1 << 20)[0]
