"""What a drafter asks of any model that guesses."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from eagle3.kv.pool import KVLayout
from eagle3.nn.attention import Core


class DraftModel(Protocol):
    """A head over the target's captured features. Its caller owns the KV pool, and so the attention cores."""

    @property
    def hidden(self) -> int:
        """H, the width of a feature after `fuse`."""

    @property
    def draft_vocab(self) -> int:
        """Vd, the tokens that it can guess."""

    @property
    def kv_layout(self) -> KVLayout:
        """How many attention layers, and so cores, it has, and what they store."""

    @property
    def dtype(self) -> torch.dtype:
        """The type it computes in, which need not be the target's."""

    @property
    def scale(self) -> float:
        """The factor on attention scores."""

    def fuse(self, captured: Tensor) -> Tensor:
        """captured [R, C·Ht], column blocks in the order of the captured layers -> features [R, H]."""

    def forward(
        self, ids: Tensor, features: Tensor, positions: Tensor, cores: Callable[[int], Core]
    ) -> tuple[Tensor, Tensor]:
        """Target ids [T], features [T, H], positions [T] -> (outputs for `logits`, feedback), both [T, H].

        Row t pairs the feature at its position with the token one further. Feedback is the next step's
        feature; `cores(i)` is layer i's attention core.
        """

    def logits(self, out: Tensor) -> Tensor:
        """Outputs [R, H] -> [R, Vd]."""

    @property
    def d2t(self) -> Tensor | None:
        """[Vd] i64, target id - draft id; None: draft ids are target ids."""

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids i64 of any shape -> target ids."""
