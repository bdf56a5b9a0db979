"""Grows the next tree: the head reads what was accepted, then its own guesses, K rows a request and step."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eagle3.config.shape import DraftShape
from eagle3.kv.meta import AttnMeta, TreeMeta, entries
from eagle3.kv.pool import KVPool
from eagle3.models.draft import DraftModel
from eagle3.nn.attention import Core, PagedCore
from eagle3.ops.build_tree import build_tree
from eagle3.ops.select import topk
from eagle3.ops.topk import draft_topk
from eagle3.spec.rows import Rows
from eagle3.spec.tree import Tree, chains


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
class Frontier:
    """The K nodes of each request that are expanded next."""

    tokens: Tensor  # [B, K] i64, target ids
    scores: Tensor  # [B, K] f32, summed log-probabilities
    feedback: Tensor  # [B, K, H], each node's parent's output
    mask: Tensor | None  # [B, K, W] i32 over the K(D-1) entries of the loop, own bit included; None: a chain


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
        scores, tokens = self._offer(out)  # [B, K]
        K = self.shape.top_k
        frontier = Frontier(tokens, scores, feedback[:, None].expand(-1, K, -1), self._own(0, scores))
        offered, kept = [(tokens, scores)], []
        parents = torch.arange(K, device=tokens.device).expand_as(tokens)  # history indices, depth by depth
        for step in range(1, self.shape.depth):
            kept.append(parents)
            tokens, scores, feedback = self._expand(rows, frontier, step)
            offered.append((tokens, scores))
            if step + 1 < self.shape.depth:
                frontier, parents = self._select(frontier, tokens, scores, feedback, step)
        return self._tree(rows.root, offered, kept), None

    def read(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Step 0: all rows leave their K/V in the pool; outputs and feedback [B, H] of those that predict."""
        features = self.head.fuse(rows.captured)
        out, feedback = self.head.forward(rows.ids, features, rows.positions, Cores(self, rows.meta))
        return out[rows.last], feedback[rows.last]

    def feed(self, rows: Rows, frontier: Frontier, step: int) -> tuple[Tensor, Tensor]:
        """Run the K frontier nodes of depth `step`: outputs and feedback [B · K, H]."""
        (B, K), base = frontier.tokens.shape, rows.length[:, None]
        at = base + (step - 1) * K + torch.arange(K, device=base.device)  # each node has its own entry
        column = torch.arange(step * K, device=base.device)
        meta = TreeMeta(
            write_at=entries(rows.table, at, self.pool.page).flatten(),
            kv_lens=(rows.length + step * K).int(),
            table=rows.table,
            tail=step * K,
            depth=(column // K).int().expand(B, -1),
            mask=frontier.mask,
        )
        positions = (base + step - 1).expand(-1, K).flatten()
        return self.head.forward(
            frontier.tokens.flatten(), frontier.feedback.flatten(0, 1), positions, Cores(self, meta)
        )

    def _expand(self, rows: Rows, frontier: Frontier, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens and scores [B, K²] of the children of depth `step`'s nodes, and these nodes' feedback [B, K, H]."""
        B, K = frontier.tokens.shape
        out, feedback = self.feed(rows, frontier, step)
        scores, tokens = self._offer(out)  # [B · K, K]
        scores = (frontier.scores[:, :, None] + scores.view(B, K, K)).flatten(1)
        return tokens.view(B, K * K), scores, feedback.view(B, K, -1)

    def _select(
        self, frontier: Frontier, tokens: Tensor, scores: Tensor, feedback: Tensor, step: int
    ) -> tuple[Frontier, Tensor]:
        """The best K of K² children as the next frontier, and their history indices [B, K]."""
        K = self.shape.top_k
        best, index = topk(scores, K)
        parent = index // K
        mask = None
        if frontier.mask is not None and (own := self._own(step, best)) is not None:
            mask = frontier.mask.gather(1, parent[:, :, None].expand_as(frontier.mask)) | own
        fed = feedback.gather(1, parent[:, :, None].expand(-1, -1, feedback.shape[2]))
        return Frontier(tokens.gather(1, index), best, fed, mask), K + (step - 1) * K * K + index

    def _own(self, step: int, like: Tensor) -> Tensor | None:
        """[1, K, W] i32: the bit of each node fed in the step after `step`; None for a chain, and when none is fed."""
        K, W = self.shape.top_k, self.shape.draft_words
        if K == 1 or step + 1 >= self.shape.depth:
            return None
        column = step * K + torch.arange(K, device=like.device)
        word = torch.arange(W, device=like.device)
        bit = torch.ones_like(column, dtype=torch.int32) << (column % 32).int()
        return torch.where(column[:, None] // 32 == word, bit[:, None], 0).repeat(like.shape[0], 1, 1)

    def _offer(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Scores f32 and target ids [R, K] of the best K draft tokens after rows `out` [R, H]."""
        scores, ids = draft_topk(self.head.logits(out), self.shape.top_k)
        return scores, self.head.to_target(ids)

    def _tree(self, root: Tensor, offered: list[tuple[Tensor, Tensor]], kept: list[Tensor]) -> Tree:
        tokens = torch.cat([t for t, _ in offered], dim=1)
        if self.shape.top_k == 1:
            return chains(torch.cat([root[:, None], tokens], dim=1))
        scores = torch.cat([s for _, s in offered], dim=1)
        history = torch.cat(kept, dim=1) if kept else tokens[:, :0]
        return Tree(*build_tree(root, tokens, scores, history, self.shape.top_k, self.shape.nodes))


@dataclass(frozen=True)
class Cores:
    """The paged attention core of each of the head's layers."""

    drafter: Drafter
    meta: AttnMeta

    def __call__(self, layer: int) -> Core:
        """Layer `layer` of the head."""
        d = self.drafter
        return PagedCore(d.pool.layer(d.first_layer + layer), self.meta, d.head.scale)
