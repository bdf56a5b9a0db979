"""Runs a prepared step on the device."""

from dataclasses import dataclass

import torch

from eagle3.engine.prepare import Preparer
from eagle3.engine.scheduler import Plan
from eagle3.spec.batch import Accepted
from eagle3.spec.worker import Worker


@dataclass(frozen=True)
class Output:
    """What a step's two passes emitted, still on the device."""

    contexts: Accepted | None
    generations: Accepted | None


class Runner:
    """Eager: slots to rest, then the prompt chunks' pass, then the generations' pass."""

    def __init__(self, worker: Worker, preparer: Preparer) -> None:
        self.worker = worker
        self.preparer = preparer

    @torch.inference_mode()
    def run(self, plan: Plan) -> Output:
        """Hand a plan to the device; nothing is waited for."""
        if (restore := self.preparer.restore(plan)) is not None:
            self.worker.slots.restore(restore)
        contexts, generations = self.preparer.contexts(plan), self.preparer.generations(plan)
        return Output(
            self.worker.contexts(contexts) if contexts else None,
            self.worker.generations(generations) if generations else None,
        )
