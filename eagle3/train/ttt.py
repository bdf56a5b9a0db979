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
    guesses: Tensor  # [S, T] i64, target ids

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
    entropy = None
    if rule.loss is Loss.kl:
        entropy = -torch.special.xlogy(labels.p, labels.p).sum(1)  # [T]
    features = head.fuse(labels.captured)
    losses, hits, counted, guesses = [], [], [], []
    for s in range(rule.steps):
        ids = batch.ahead(batch.ids, s + 1)
        out, features = head(ids, features, batch.positions + s, cores.__getitem__)
        written = batch.ahead(batch.mask, s)
        counts = written & batch.ahead(labels.known, s + 1)
        loss, guess = soft_loss(out, head.lm_head.weight, labels.p, counts, s + 1)
        if entropy is not None:
            loss = loss - (batch.ahead(entropy, s + 1) * counts).sum()
        divisor = counts.sum().clamp_min(1) if rule.mean is LossMean.masked else len(counts)
        losses.append(loss / divisor)
        guess = head.to_target(guess)
        hits.append((counts & (guess == batch.ahead(labels.best, s + 1))).sum())
        counted.append(written.sum())
        guesses.append(guess)
    return Outcome(torch.stack(losses), torch.stack(hits), torch.stack(counted), torch.stack(guesses))
