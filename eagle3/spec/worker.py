"""One step, in the order it happens. Nothing here reads a value back to the host."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3.config.shape import DraftShape
from eagle3.kv.meta import TreeMeta, entries
from eagle3.kv.pool import KVPool
from eagle3.models.decoder import Decoder
from eagle3.spec.accept import accept, draw
from eagle3.spec.batch import Accepted, Contexts, Generations
from eagle3.spec.slots import SlotState, TreeSlots
from eagle3.spec.tree import Tree, chain


@dataclass(frozen=True)
class Worker:
    """Target, its KV pool and the requests' slots: everything that a step changes."""

    target: Decoder
    pool: KVPool
    slots: TreeSlots
    shape: DraftShape

    def contexts(self, batch: Contexts) -> Accepted:
        """Run C prompt chunks. A chunk that ends its prompt emits one token and fills its slot; others do neither."""
        hidden = self.target(batch.ids, batch.positions, self.pool, batch.metas[0])
        length = batch.positions[batch.predict] + 1  # [C]
        drawn = draw(self.target.logits(hidden[batch.predict]), batch.sampling, length, batch.draws)
        token = torch.where(batch.given < 0, drawn, batch.given)
        self.slots.admit(batch.slots, batch.sampling)
        self.slots.write(batch.slots, batch.last, self._roots(token), length, has_tree=False)
        return self._emitted(token, batch.last)

    def generations(self, batch: Generations) -> Accepted:
        """Run the target over the trees of G requests, accept, and leave each slot at its new root."""
        state = self.slots.read(batch.slots)
        ids, positions, meta = tree_rows(state, batch.tables[0], self.pool.page)
        hidden = self.target(ids, positions, self.pool, meta)
        accepted = accept(self.target.logits(hidden), state, batch.draws, self.shape.depth)
        real = batch.slots != self.slots.dummy
        accepted = replace(accepted, counts=accepted.counts * real)
        root = accepted.tokens.gather(1, (accepted.counts - 1).clamp(min=0)[:, None])[:, 0]
        self.slots.write(
            batch.slots, real, self._roots(root), state.length + accepted.counts, has_tree=False
        )
        return accepted

    def _roots(self, token: Tensor) -> Tree:
        """Trees [B, N] at rest, but for their roots."""
        rest = chain(token.shape[0], self.shape.nodes, token.device)
        rest.tokens[:, 0] = token
        return rest

    def _emitted(self, token: Tensor, last: Tensor) -> Accepted:
        """`token` [C] as what a prompt's end emits."""
        tokens = torch.zeros(token.shape[0], self.shape.path, dtype=torch.int64, device=token.device)
        tokens[:, 0] = token
        nodes = torch.full((token.shape[0], self.shape.depth), -1, device=token.device)
        return Accepted(tokens, last.long(), nodes)


def tree_rows(state: SlotState, table: Tensor, page: int) -> tuple[Tensor, Tensor, TreeMeta]:
    """Ids [G · N], positions [G · N] and metadata for verifying the trees of G requests.

    Node j is written at entry length + j whatever its depth; its position is length + depth[j].
    """
    tree, base = state.tree, state.length[:, None]
    nodes = tree.tokens.shape[1]
    at = base + torch.arange(nodes, device=base.device)
    meta = TreeMeta(
        write_at=entries(table, at, page).flatten(),
        kv_lens=(state.length + nodes).int(),
        table=table,
        tail=nodes,
        depth=tree.depth,
        mask=tree.mask if nodes > 1 else None,
    )
    return tree.tokens.flatten(), (base + tree.depth).flatten(), meta
