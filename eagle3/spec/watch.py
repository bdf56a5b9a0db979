"""Looks over a worker's shoulder: every verification's tree with the scores it grew by. For eyes, not for speed."""

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from eagle3.ops.grow import History
from eagle3.ops.select import topk
from eagle3.spec.batch import Accepted, Draws
from eagle3.spec.drafter import Drafter
from eagle3.spec.slots import SlotState
from eagle3.spec.tree import Tree
from eagle3.spec.worker import Worker


@dataclass(frozen=True)
class Verification:
    """One step of B requests: what was guessed and what became of it."""

    tree: Tree
    scores: Tensor | None  # [B, N - 1] f32, summed log-probabilities of all nodes but the root; None: not known
    accepted: Accepted


class Watch:
    """Keeps what every eager step of one request verified, in order."""

    def __init__(self) -> None:
        self.seen: list[Verification] = []
        self.scores: Tensor | None = None  # of the newest tree

    def on(self, worker: Worker) -> Worker:
        """The same worker, watched. Scores are known where a `Drafter` proper grows the trees."""
        spec = worker.spec
        assert spec is not None, "plain decoding has no trees"

        def verify(logits: Tensor, state: SlotState, draws: Draws, depth: int) -> Accepted:
            accepted = spec.verify(logits, state, draws, depth)
            self.seen.append(Verification(state.tree, self.scores, accepted))
            return accepted

        drafter = spec.drafter
        if type(drafter) is Drafter:
            drafter = _Scored(drafter.head, drafter.pool, drafter.first_layer, drafter.shape, self)
        return replace(worker, spec=replace(spec, drafter=drafter, verify=verify))


@dataclass(frozen=True)
class _Scored(Drafter):
    """A drafter that tells its trees' scores."""

    watch: Watch

    def _tree(self, root: Tensor, history: History) -> Tree:
        chosen = topk(history.scores, self.shape.nodes - 1)[1].sort(-1).values  # as a tree chooses its nodes
        self.watch.scores = history.scores.gather(1, chosen)
        return super()._tree(root, history)

    def _chained(self, root: Tensor, tokens: list[Tensor], scores: list[Tensor]) -> Tree:
        self.watch.scores = torch.cat(list(accumulate(scores)), dim=1)
        return super()._chained(root, tokens, scores)
