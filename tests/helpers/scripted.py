"""A drafter that needs no head: it proposes what it is told, by slot and position."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from eagle3.kv.pool import KVPool
from eagle3.spec.rows import Rows
from eagle3.spec.tree import Tree, chain


@dataclass(frozen=True)
class Scripted:
    """Chains of D tokens from `script` [S + 1, max_len], the tokens of each slot's sequence by position."""

    pool: KVPool
    shape: DraftShape
    script: Tensor

    def read(self, rows: Rows) -> None:
        """Nothing to take in."""

    def draft(self, rows: Rows) -> tuple[Tree, None]:
        """The D tokens of the script after each root."""
        at = rows.length[:, None] + torch.arange(1, self.shape.path, device=rows.length.device)
        guesses = self.script[rows.slots[:, None], at.clamp(max=self.script.shape[1] - 1)]
        rest = chain(len(rows.root), self.shape.nodes, rows.root.device)
        return Tree(torch.cat([rows.root[:, None], guesses], dim=1), *rest.tensors()[1:]), None


def spoiled(sequence: list[int], prompt_len: int, every: int, vocab: int) -> list[int]:
    """A sequence whose every k-th token after the prompt is wrong."""
    return [
        (t + 1) % vocab if i >= prompt_len and (i - prompt_len + 1) % every == 0 else t for i, t in enumerate(sequence)
    ]


def follow(engine: Engine, script: Tensor) -> None:
    """Put a scripted drafter in the place of the engine's own."""
    worker = engine.runner.worker
    assert worker.spec is not None
    drafter = Scripted(worker.spec.drafter.pool, worker.shape, script)
    engine.runner.worker = replace(worker, spec=replace(worker.spec, drafter=drafter))
