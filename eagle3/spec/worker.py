"""One step, in the order it happens. Nothing here reads a value back to the host."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3.config.shape import DraftShape
from eagle3.kv.meta import TreeMeta
from eagle3.kv.pool import KVPool
from eagle3.models.decoder import Decoder
from eagle3.ops.path_rows import PathRows
from eagle3.ops.path_rows import path_rows as follow_path
from eagle3.ops.relocate_kv import relocate_kv
from eagle3.ops.slot_rows import Placed
from eagle3.spec.accept import Verify, accept, draw
from eagle3.spec.batch import Accepted, Contexts, Draws, Generations
from eagle3.spec.capture import Capture
from eagle3.spec.drafter import Drafts
from eagle3.spec.logprobs import logprobs, node_rows
from eagle3.spec.rows import context_rows, path_rows
from eagle3.spec.slots import SlotState, TreeSlots
from eagle3.spec.tree import Tree, chains


@dataclass(frozen=True)
class Speculation:
    """What drafting adds to a target: where its features are kept, and who guesses from them."""

    capture: Capture
    drafter: Drafts
    verify: Verify = accept


@dataclass(frozen=True)
class Worker:
    """Target, its KV pool and the requests' slots: everything that a step changes."""

    target: Decoder
    pool: KVPool  # the target's layers first
    slots: TreeSlots
    shape: DraftShape
    spec: Speculation | None = None  # None: plain decoding, a tree of the root alone

    def contexts(self, batch: Contexts) -> Accepted:
        """Run C prompt chunks. A chunk that ends its prompt emits one token and fills its slot; others do neither."""
        hidden = self.target(batch.ids, batch.positions, self.pool, batch.metas[0], self.spec and self.spec.capture)
        length = batch.positions[batch.predict] + 1  # [C]
        own = self.target.logits(hidden[batch.predict])
        logits = self.slots.adjust.of_prompts(own, batch, length)
        drawn = draw(logits, batch.sampling, length, batch.draws)
        token = torch.where(batch.given < 0, drawn, batch.given)
        self.slots.admit(batch.slots, batch.sampling)
        if self.spec is None:
            self._write(batch.slots, batch.last, chains(token[:, None], self.slots.rest), length=length)
        else:
            rows = context_rows(batch, token, length, self.spec.capture.hidden)
            if batch.ending:
                self._write(batch.slots, batch.last, *self.spec.drafter.draft(rows), length=length)
            else:
                self.spec.drafter.read(rows)
        return self._told(self._emitted(token, batch.last), own, batch.draws, 1)

    def generations(self, batch: Generations) -> Accepted:
        """Verify the trees of G requests, accept, tidy the target's KV, and grow the next trees from the new roots."""
        table = batch.tables[0]
        state, placed = self.slots.read(batch.slots, table, self.pool.page)
        ids, positions, meta = tree_rows(state, placed, table)
        hidden = self.target(ids, positions, self.pool, meta, self.spec and self.spec.capture)
        verify = accept if self.spec is None else self.spec.verify
        own = self.target.logits(hidden)
        logits = self.slots.adjust.of_trees(own, batch.slots, state.length, state.tree, batch.draws)
        accepted = verify(logits, state, batch.draws, self.shape.depth)
        if self.shape.top_k > 1:
            relocate_kv(self.pool.groups[0], table, state.length, accepted.nodes)
        path = self._path(batch, state, accepted, hidden)
        if batch.draws.penalised:
            self.slots.adjust.advance(batch.slots, state.tree.tokens[:, 0], accepted.tokens, path.counts)
        if self.spec is None:
            self._write(batch.slots, path.real, chains(path.root[:, None], self.slots.rest), length=path.length)
        else:
            rows = path_rows(batch, state, accepted.tokens, path)
            self._write(batch.slots, path.real, *self.spec.drafter.draft(rows), length=path.length)
        return self._told(replace(accepted, counts=path.counts), own, batch.draws, self.shape.nodes)

    def _path(self, batch: Generations, state: SlotState, accepted: Accepted, hidden: Tensor) -> PathRows:
        """What follows from what was accepted, with the features of the path's nodes; of no width without a head."""
        if self.spec is None:
            page, features = self.pool.page, hidden[:, :0]
        else:
            page, features = self.spec.drafter.pool.page, self.spec.capture.hidden[: len(hidden)]
        given = (accepted.tokens, accepted.counts, accepted.nodes, state.length, batch.slots)
        features = features.view(len(batch.slots), self.shape.nodes, features.shape[1])
        return follow_path(*given, self.slots.dummy, batch.tables[-1], page, features)

    def _write(self, ids: Tensor, keep: Tensor, tree: Tree, probs: Tensor | None = None, *, length: Tensor) -> None:
        self.slots.write(ids, keep, tree, length, has_tree=self.spec is not None, probs=probs)

    def _told(self, accepted: Accepted, logits: Tensor, draws: Draws, rows: int) -> Accepted:
        """With log-probabilities where they are asked for; a request has so many rows of `logits`."""
        if draws.logprobs is None:
            return accepted
        at = node_rows(accepted.nodes, rows)
        return replace(accepted, logprobs=logprobs(logits, at, accepted.tokens, draws.logprobs))

    def _emitted(self, token: Tensor, last: Tensor) -> Accepted:
        """`token` [C] as what a prompt's end emits."""
        tokens = torch.zeros(token.shape[0], self.shape.path, dtype=torch.int64, device=token.device)
        tokens[:, 0] = token
        nodes = torch.full((token.shape[0], self.shape.depth), -1, device=token.device)
        return Accepted(tokens, last.long(), nodes)


def tree_rows(state: SlotState, placed: Placed, table: Tensor) -> tuple[Tensor, Tensor, TreeMeta]:
    """Ids [G · N], positions [G · N] and metadata for verifying the trees of G requests."""
    tree = state.tree
    nodes = tree.tokens.shape[1]
    meta = TreeMeta(
        write_at=placed.write_at.flatten(),
        kv_lens=placed.kv_lens,
        table=table,
        tail=nodes,
        depth=tree.depth,
        mask=tree.mask if nodes > 1 else None,
    )
    return tree.tokens.flatten(), placed.positions.flatten(), meta
