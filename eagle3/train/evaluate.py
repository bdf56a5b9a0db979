"""Losses and accuracies on samples that are not learnt from, and how long chains would be on their answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.models.eagle import EagleHead
from eagle3.train.packing import Batch, batch_of, chunks, pack
from eagle3.train.ranks import Ranks
from eagle3.train.samples import Sample
from eagle3.train.teacher import Teacher
from eagle3.train.ttt import Outcome, Rule, unroll


@dataclass(frozen=True)
class Score:
    """What a head is worth on held-out samples."""

    loss: list[float]  # [S]
    accuracy: list[float]  # [S]
    tau: float  # 1 + accepted drafts a step, in chains of S drafts


class Sums:
    """Outcomes added up on the device, read when asked for."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self._sums = torch.zeros(3, steps, dtype=torch.float64, device=device)  # losses, hits, counted
        self._passes = torch.zeros(1, dtype=torch.float64, device=device)

    def add(self, outcome: Outcome) -> None:
        """One pass more."""
        self._sums += torch.stack([outcome.losses.detach().double(), outcome.hits.double(), outcome.counted.double()])
        self._passes += 1

    def read(self, ranks: Ranks) -> tuple[list[float], list[float]]:
        """Mean losses and accuracies [S] over all passes of all ranks; forgotten afterwards."""
        ranks.add([self._sums, self._passes])
        loss, accuracy = self._sums[0] / self._passes, self._sums[1] / self._sums[2].clamp_min(1)
        told = loss.tolist(), accuracy.tolist()
        self._sums.zero_()
        self._passes.zero_()
        return told


@torch.no_grad()
def evaluate(
    head: EagleHead, teacher: Teacher, samples: Sequence[Sample], rule: Rule, ranks: Ranks, *, length: int, rows: int
) -> Score:
    """The score over all samples, `rows` rows of `length` tokens a pass, passes dealt to the ranks in turn."""
    packed = pack(range(len(samples)), [len(s.ids) for s in samples], length)
    sums, walks = Sums(rule.steps, ranks.device), [(0, 0)]
    for i, part in enumerate(chunks(packed, rows)):
        if i % ranks.size != ranks.rank:
            continue
        inside = [[samples[j] for j in row] for row in part]
        batch = batch_of(inside, length, ranks.device)
        outcome = unroll(head, batch, teacher(batch), rule)
        sums.add(outcome)
        run = hits_in_a_row(batch, outcome.guesses).tolist()
        for r, row in enumerate(inside):
            at = r * length
            for sample in row:
                walks.append(walk(run[at : at + len(sample.ids)], sample.answers))
                at += len(sample.ids)
    loss, accuracy = sums.read(ranks)
    walked = torch.tensor(walks, dtype=torch.float64).sum(0).to(ranks.device)
    ranks.add([walked])
    accepted, steps = walked.tolist()
    return Score(loss, accuracy, 1 + accepted / max(steps, 1))


def hits_in_a_row(batch: Batch, guesses: Tensor) -> Tensor:
    """[T]: how many of an index's guesses, the first ones on, are the tokens that do follow; unasked is wrong.

    guesses [S, M] as an `Outcome` has them.
    """
    asked = batch.asked
    behind = batch.ahead(batch.ids, 2)[asked]
    right = torch.zeros(len(guesses), len(batch.ids), dtype=torch.int64, device=asked.device)
    right[:, asked] = ((guesses == behind) & (batch.left[asked] >= 2)).long()  # by the token that was asked behind
    return torch.stack([batch.ahead(row, s) for s, row in enumerate(right)]).cumprod(0).sum(0)


def walk(run: Sequence[int], answers: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Decode a document's answers again, token by token as an engine would: accepted drafts, and steps.

    run [n] as `hits_in_a_row`. The root at index r is drafted for from the feature of index r - 1; of T = 0 and of
    T > 0 answers alike a draft is accepted if it is the token that the target then wrote.
    """
    accepted = steps = 0
    for start, end in answers:
        root = max(start, 1)
        while root < end - 1:
            hit = min(run[root - 1], end - 1 - root)
            accepted, steps, root = accepted + hit, steps + 1, root + hit + 1
    return accepted, steps
