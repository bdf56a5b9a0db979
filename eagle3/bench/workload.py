"""What is asked of the engines that are measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Workload:
    """Prompts as token ids. `real` tells text from made-up ids, whose acceptance means nothing."""

    prompts: tuple[tuple[int, ...], ...]
    real: bool

    def batch(self, size: int, turn: int) -> list[list[int]]:
        """`size` prompts, other ones each turn while there are other ones."""
        first = size * turn
        return [list(self.prompts[(first + i) % len(self.prompts)]) for i in range(size)]


def made_up(count: int, length: int, vocab: int, seed: int = 0) -> Workload:
    """Random token ids: for shapes and speed alone."""
    make = torch.Generator().manual_seed(seed)
    rows = torch.randint(vocab, (count, length), generator=make).tolist()
    return Workload(tuple(map(tuple, rows)), real=False)


def given(prompts: Sequence[Sequence[int]]) -> Workload:
    """Real prompts."""
    return Workload(tuple(map(tuple, prompts)), real=True)
