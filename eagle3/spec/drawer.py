"""Chains whose drafts are drawn, with the distributions that the ratio test wants."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.ops.filters import filter_logits
from eagle3.ops.grow import Grown
from eagle3.ops.philox import Stream, noise
from eagle3.ops.select import argmax
from eagle3.spec.drafter import Drafter
from eagle3.spec.rows import Rows
from eagle3.spec.tree import Tree, chains


@dataclass(frozen=True)
class Drawer(Drafter):
    """A drafter for K = 1 that draws each token as its request asks, from the draft's own distribution."""

    def draft(self, rows: Rows) -> tuple[Tree, Tensor]:  # type: ignore[override]
        """Chains [B, N] and the distributions f32 [B, D, Vd] of their tokens."""
        out, feedback = self.read(rows)
        feedback, loop = feedback[rows.last], self.loop(rows)
        tokens, probs = [rows.root], []
        for step in range(1, self.shape.depth + 1):
            token, q = self._draw(out, rows, step)
            tokens.append(token)
            probs.append(q)
            if step < self.shape.depth:
                unscored = torch.zeros_like(token[:, None], dtype=torch.float32)
                node = Grown(token[:, None], unscored, feedback[:, None], None)
                out, feedback = self.feed(rows, loop, node, step)
        return chains(torch.stack(tokens, dim=1), self.rest), torch.stack(probs, dim=1)

    def _draw(self, out: Tensor, rows: Rows, step: int) -> tuple[Tensor, Tensor]:
        """The token [B] `step` after the root, and what it was drawn from [B, Vd]."""
        temperature, top_k, top_p, min_p, seed = rows.sampling.tensors()
        kept = filter_logits(self.head.logits(out), temperature, top_k, top_p, min_p)
        race = noise(seed, rows.length + step, Stream.DRAFT, kept.shape[1])
        token = argmax(kept - race.log().neg().log())
        q = kept.softmax(-1).float()
        only = torch.arange(q.shape[1], device=q.device) == token[:, None]
        broken = q.isnan().any(-1, keepdim=True)  # a row without a finite logit: its token was certain
        return self.head.to_target(token), torch.where(broken, only.float(), q)
