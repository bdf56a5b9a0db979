"""What is asked of the engines that are measured."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Workload:
    """Prompts as token ids. `real` tells text from made-up ids, whose acceptance means nothing."""

    prompts: tuple[tuple[int, ...], ...]
    real: bool
    chat: bool = False  # whether they went through a chat template

    def batch(self, size: int, turn: int) -> list[list[int]]:
        """`size` prompts, other ones each turn while there are other ones."""
        first = size * turn
        return [list(self.prompts[(first + i) % len(self.prompts)]) for i in range(size)]

    @property
    def sha256(self) -> str:
        """Of the ids, by which two runs can be told to have had the same prompts."""
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()


def made_up(count: int, length: int, vocab: int, seed: int = 0) -> Workload:
    """Random token ids: for shapes and speed alone."""
    make = torch.Generator().manual_seed(seed)
    rows = torch.randint(vocab, (count, length), generator=make).tolist()
    return Workload(tuple(map(tuple, rows)), real=False)


def given(prompts: Sequence[Sequence[int]], chat: bool = False) -> Workload:
    """Real prompts."""
    return Workload(tuple(map(tuple, prompts)), real=True, chat=chat)
