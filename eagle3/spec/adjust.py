"""What requests ask of the target's logits before a token is taken, by slot, and what they said so far."""

import torch
from torch import Tensor

from eagle3.ops.adjust import Terms, adjust
from eagle3.spec.batch import Asked, Contexts, Draws
from eagle3.spec.tree import Tree

MOST_STOPS = 64  # stop ids of a request that can be kept away from the beginning of its answer


class Adjustments:
    """S rows and a dummy's, the last. A row at rest asks nothing.

    Tokens are counted up to a request's root, which is not among them: it is on the path of every node.
    """

    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        self.vocab = vocab
        self._used = False  # somebody asked; until then every row is at rest
        rows = slots + 1
        self.terms = Terms(
            free=torch.zeros(rows, dtype=torch.int64, device=device),
            stops=torch.full((rows, MOST_STOPS), -1, device=device),
            repetition=torch.ones(rows, device=device),
            frequency=torch.zeros(rows, device=device),
            presence=torch.zeros(rows, device=device),
            written=torch.zeros(rows, 0, dtype=torch.int32, device=device),
            prompted=torch.zeros(rows, 0, dtype=torch.uint8, device=device),
        )

    @torch.inference_mode(False)  # tensors like those that were there from the start
    def keep_counts(self) -> None:
        """Make room for the counts that penalties want, once; before any pass that penalises."""
        if self.terms.written.shape[1] < self.vocab:
            rows = self.terms.free.shape[0]
            self.terms = self.terms._replace(
                written=self.terms.written.new_zeros(rows, self.vocab),
                prompted=self.terms.prompted.new_zeros(rows, self.vocab),
            )

    def admit(self, ids: Tensor, asked: Asked) -> None:
        """Give the rows `ids` [C] what their requests ask."""
        self._used = True
        self.terms.free[ids] = asked.free
        self.terms.stops[ids] = asked.stops
        for row, new in zip(self.terms[2:5], asked.penalties.unbind(1), strict=True):
            row[ids] = new

    def restore(self, ids: Tensor) -> None:
        """Bring the rows `ids` back to rest."""
        if not self._used:
            return
        self.terms.stops.index_fill_(0, ids, -1)
        self.terms.repetition.index_fill_(0, ids, 1)
        for rows in (self.terms.free, self.terms.frequency, self.terms.presence):
            rows.index_fill_(0, ids, 0)
        for counts in (self.terms.written, self.terms.prompted):
            counts.index_fill_(0, ids, 0)

    def of_prompts(self, logits: Tensor, batch: Contexts, index: Tensor) -> Tensor:
        """Take in prompt chunks; logits [C, V] as their requests want them, for the token at `index` [C]."""
        if batch.asked is None:
            return logits
        self.admit(batch.slots, batch.asked)
        if batch.draws.penalised:
            self.read(batch.ids, batch.asked)
        nothing = torch.zeros_like(index)[:, None]  # a path without a node
        return self._adjust(logits, batch.slots, index, nothing, nothing.int()[..., None], batch.draws)

    def of_trees(self, logits: Tensor, ids: Tensor, length: Tensor, tree: Tree, draws: Draws) -> Tensor:
        """Logits [G · N, V] as the requests in the slots `ids` [G] want them, each node's by its own path."""
        if not draws.adjusted:
            return logits
        index = (length[:, None] + tree.depth + 1).flatten()
        return self._adjust(logits, ids, index, tree.tokens, tree.mask, draws)

    def read(self, ids: Tensor, asked: Asked) -> None:
        """Count a prompt pass's tokens [T]."""
        at = asked.slots * self.vocab + ids
        self.terms.written.view(-1).scatter_add_(0, at, asked.written.int())
        dummy = self.terms.free.shape[0] - 1
        slots = torch.where(asked.written, dummy, asked.slots)  # the dummy's row is nobody's
        self.terms.prompted[slots, ids] = torch.ones_like(ids, dtype=torch.uint8)

    def advance(self, ids: Tensor, root: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Count the old roots [G] and what was accepted after them, tokens [G, P], but for the new roots.

        counts [G], the accepted tokens; 0 in padding.
        """
        said = torch.cat([root[:, None], tokens[:, :-1]], dim=1)
        there = torch.arange(said.shape[1], device=said.device) < counts[:, None]
        at = ids[:, None] * self.vocab + said
        self.terms.written.view(-1).scatter_add_(0, at.flatten(), there.flatten().int())

    def _adjust(self, logits: Tensor, ids: Tensor, index: Tensor, tokens: Tensor, mask: Tensor, draws: Draws) -> Tensor:
        return adjust(logits, self.terms, ids, index, tokens, mask, least=draws.least, penalised=draws.penalised)
