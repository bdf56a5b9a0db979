"""Training-time test: the head reads the target's features once, then its own feedback, S steps in all.

At step s index t stands for position t + s: it reads the token behind that one, guesses the one after, and is held
against the target's distribution there. The feedback of index t stays at index t, and no gradient is stopped.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.config.schema import Loss, LossMean
from eagle3.models.eagle import EagleHead
from eagle3.train.attention import StepCore, attend_of
from eagle3.train.packing import Batch
from eagle3.train.soft_loss import soft_loss
from eagle3.train.teacher import Labels


@dataclass(frozen=True)
class Rule:
    """How losses are made and weighed."""

    steps: int  # S
    decay: float
    loss: Loss = Loss.ce
    mean: LossMean = LossMean.all


@dataclass(frozen=True)
class Outcome:
    """What S steps over a batch gave; sums, so that batches can be added up."""

    losses: Tensor  # [S], differentiable
    hits: Tensor  # [S], guesses equal to the target's argmax; a token that the head cannot guess is a miss
    counted: Tensor  # [S], positions at mask 1
    guesses: Tensor  # [S, M] i64, target ids: at step s of the token behind asked[m] + 1, made at index asked[m] - s

    def total(self, decay: float) -> Tensor:
        """Σ decay^s · loss_s."""
        steps = torch.arange(len(self.losses), device=self.losses.device, dtype=self.losses.dtype)
        return (decay**steps * self.losses).sum()


def unroll(head: EagleHead, batch: Batch, labels: Labels, rule: Rule) -> Outcome:
    """Training-time test of a head that has an output head of its own, in the head's type.

    loss_s is the mean over all T positions, padding included, or (`masked`) over those that count at step s.
    """
    assert head.lm_head is not None
    attend = attend_of(batch, head.scale)
    cores = [StepCore(attend) for _ in head.layers]
    steps = torch.arange(rule.steps, device=batch.ids.device)[:, None]
    ids, positions = batch.ahead(batch.ids, steps + 1), batch.positions + steps  # [S, T]
    written = batch.mask[batch.asked] & (batch.positions[batch.asked] >= steps)  # [S, M]
    counts = written & labels.known
    at = (batch.asked - steps) % len(batch.ids)  # [S, M]; before all documents: some index that no other row has
    features = head.fuse(labels.captured)
    losses, guesses = [], []
    for s in range(rule.steps):
        out, features = head(ids[s], features, positions[s], cores.__getitem__)
        loss, guess = soft_loss(out, head.lm_head.weight, labels.p, at[s], counts[s])
        losses.append(loss)
        guesses.append(guess)
    sums, said = torch.stack(losses), head.to_target(torch.stack(guesses))
    if rule.loss is Loss.kl:
        sums = sums + (torch.special.xlogy(labels.p, labels.p).sum(1) * counts).sum(1)
    divisor = counts.sum(1).clamp_min(1) if rule.mean is LossMean.masked else len(batch.ids)
    hits = (counts & (said == labels.best)).sum(1)
    return Outcome(sums / divisor, hits, written.sum(1), said)
