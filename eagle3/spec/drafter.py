"""Grows the next tree: the head reads what was accepted, then its own guesses, K rows a request and step."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from eagle3.config.shape import DraftShape
from eagle3.kv.meta import AttnMeta, TreeMeta
from eagle3.kv.pool import KVPool
from eagle3.models.draft import DraftModel
from eagle3.nn.attention import Core, PagedCore
from eagle3.ops.build_tree import build_tree
from eagle3.ops.grow import Grown, History, grow, start
from eagle3.ops.loop_rows import LoopRows, loop_rows
from eagle3.ops.topk import draft_topk
from eagle3.spec.rows import Rows
from eagle3.spec.tree import Tree, chain, chains


class Drafts(Protocol):
    """Who guesses: the head's `Drafter`, or a stand-in for it."""

    @property
    def pool(self) -> KVPool:
        """Where its K/V lives."""

    def read(self, rows: Rows) -> object:
        """Take in rows from which no tree is wanted yet."""

    def draft(self, rows: Rows) -> tuple[Tree, Tensor | None]:
        """Trees [B, N] that grow from the roots of `rows`, and the distributions f32 [B, D, Vd] they were drawn from.

        Without a draw (the K best, always the same) there is no distribution.
        """


@dataclass(frozen=True)
class Drafter:
    """A head, its KV pool, and the first of that pool's layers that is the head's."""

    head: DraftModel
    pool: KVPool
    first_layer: int
    shape: DraftShape

    def draft(self, rows: Rows) -> tuple[Tree, None]:
        """Trees [B, N] that grow from the roots of `rows`.

        Step 0 reads every row; the last of each request offers the K nodes of depth 1. Each further step feeds the
        K best nodes of the newest depth alone: what earlier ones left in the pool is found through the mask.
        """
        out, feedback = self.read(rows)
        K, D = self.shape.top_k, self.shape.depth
        if K == 1:
            return self._chain(rows, out, feedback[rows.last]), None
        scores, tokens = self._offer(out)  # [B, K]
        history = History.empty(tokens.shape[0], K, D, tokens.device)
        nodes = start(scores, tokens, feedback, rows.last, history, self.shape.draft_words)
        loop = self.loop(rows)
        for step in range(1, D):
            out, fed = self.feed(rows, loop, nodes, step)
            scores, tokens = self._offer(out)  # [B · K, K]
            more = step + 1 < D
            nodes = grow(
                scores, tokens, nodes.scores, fed if more else None, nodes.mask if more else None, history, step
            )
        return self._tree(rows.root, history), None

    def read(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Step 0: all rows leave their K/V in the pool; outputs [B, H] of those that predict, all feedback [T, H]."""
        features = self.head.fuse(rows.captured)
        out, feedback = self.head.forward(rows.ids, features, rows.positions, Cores(self, rows.meta))
        return out[rows.last], feedback

    def loop(self, rows: Rows) -> LoopRows:
        """Where the rows of all further steps stand."""
        return loop_rows(rows.length, rows.table, self.pool.page, self.shape.top_k, self.shape.depth)

    def feed(self, rows: Rows, loop: LoopRows, nodes: Grown, step: int) -> tuple[Tensor, Tensor]:
        """Run the K nodes of depth `step` of each request: outputs and feedback [B · K, H]."""
        assert nodes.feedback is not None
        tail = step * self.shape.top_k
        meta = TreeMeta(
            write_at=loop.write_at[step - 1],
            kv_lens=loop.kv_lens[step - 1],
            table=rows.table,
            tail=tail,
            depth=loop.depth[:, :tail].expand(nodes.tokens.shape[0], -1),
            mask=nodes.mask,
        )
        positions = loop.positions[step - 1]
        return self.head.forward(nodes.tokens.flatten(), nodes.feedback.flatten(0, 1), positions, Cores(self, meta))

    def _chain(self, rows: Rows, out: Tensor, feedback: Tensor) -> Tree:
        """K = 1: nothing to choose from."""
        loop = self.loop(rows)
        tokens, scores = [], []
        for step in range(1, self.shape.path):
            score, token = self._offer(out)  # [B, 1]
            tokens.append(token)
            scores.append(score)
            if step < self.shape.depth:
                out, feedback = self.feed(rows, loop, Grown(token, score, feedback[:, None], None), step)
        return self._chained(rows.root, tokens, scores)

    def _offer(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Scores f32 and target ids [R, K] of the best K draft tokens after rows `out` [R, H]."""
        return draft_topk(self.head.logits(out), self.shape.top_k, self.head.d2t)

    def _tree(self, root: Tensor, history: History) -> Tree:
        return Tree(*build_tree(root, *history, self.shape.top_k, self.shape.nodes))

    def _chained(self, root: Tensor, tokens: list[Tensor], scores: list[Tensor]) -> Tree:
        return chains(torch.cat([root[:, None], *tokens], dim=1), self.rest)

    @cached_property
    def rest(self) -> Tree:
        """One chain [1, N]: the links of all."""
        return chain(1, self.shape.nodes, self.pool.groups[0].device)


@dataclass(frozen=True)
class Cores:
    """The paged attention core of each of the head's layers."""

    drafter: Drafter
    meta: AttnMeta

    def __call__(self, layer: int) -> Core:
        """Layer `layer` of the head."""
        d = self.drafter
        return PagedCore(d.pool.layer(d.first_layer + layer), self.meta, d.head.scale)
