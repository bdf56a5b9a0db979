"""What a request is told about itself when it ends, and what an engine knows of its drafting."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import isclose

from eagle3.config.shape import DraftShape
from eagle3.engine.request import Request

log = logging.getLogger(__name__)

POOR, ENOUGH = 1.05, 200  # a mean acceptance length below POOR after ENOUGH steps is hardly ever the head's own


@dataclass(frozen=True)
class SpecMetrics:
    """Drafting in numbers, one entry a verification: its raw accepted drafts, even where the answer was cut short.

    Null where there is nothing to say, never NaN. Position i is the i-th draft of a path, counted from 0.
    """

    num_spec_steps: int
    num_draft_tokens: int  # proposed: N - 1 a step
    num_accepted_draft_tokens: int  # without the bonus
    mean_acceptance_length: float | None  # 1 + accepted / steps
    draft_acceptance_rate: float | None  # accepted / proposed
    acceptance_histogram: list[int]  # [D + 1], steps by accepted drafts
    per_position_acceptance_rate: list[float | None]  # [D], share of steps with more than i accepted
    conditional_acceptance_rate: list[float | None]  # [D], of those with more than i - 1, the share with more than i
    acceptance_valid: bool  # False: acceptance was forced, not earned
    accepted_per_step: list[int] | None = None  # of one request; None: many

    @classmethod
    def of(cls, histogram: Sequence[int], nodes: int, valid: bool) -> "SpecMetrics":
        """From steps by accepted drafts [D + 1], each of which verified `nodes` rows, the root included."""
        steps = sum(histogram)
        accepted = sum(i * count for i, count in enumerate(histogram))
        proposed = steps * (nodes - 1)
        beyond = [sum(histogram[i:]) for i in range(len(histogram) + 1)]  # steps with at least i accepted
        metrics = cls(
            num_spec_steps=steps,
            num_draft_tokens=proposed,
            num_accepted_draft_tokens=accepted,
            mean_acceptance_length=1 + accepted / steps if steps else None,
            draft_acceptance_rate=accepted / proposed if proposed else None,
            acceptance_histogram=list(histogram),
            per_position_acceptance_rate=[n / steps if steps else None for n in beyond[1:-1]],
            conditional_acceptance_rate=[n / before if before else None for before, n in pairwise(beyond[:-1])],
            acceptance_valid=valid,
        )
        metrics._check()
        return metrics

    def _check(self) -> None:
        """The identities that hold between the numbers, whatever was drafted."""
        assert self.num_accepted_draft_tokens <= self.num_draft_tokens
        shares = [share for share in self.per_position_acceptance_rate if share is not None]
        assert all(later <= share for share, later in pairwise(shares))
        if self.mean_acceptance_length is None:
            assert not shares
            return
        assert isclose(1 + sum(shares), self.mean_acceptance_length)
        for (share, later), given in zip(pairwise([1.0, *shares]), self.conditional_acceptance_rate, strict=True):
            assert later == 0 if given is None else isclose(given * share, later)


@dataclass(frozen=True)
class Metrics:
    """Times in milliseconds from the request's arrival; null where there is nothing to say, never NaN."""

    num_prompt_tokens: int
    num_output_tokens: int
    ttft_ms: float | None  # to the first token
    tpot_ms: float | None  # (e2el - ttft) / (tokens - 1)
    e2el_ms: float | None  # to the end
    num_preemptions: int
    spec: SpecMetrics | None  # None: plain decoding

    def json(self, trace: bool = False) -> dict[str, object]:
        """Plain values; `trace` keeps `accepted_per_step`."""
        plain = asdict(self)
        if self.spec and not trace:
            del plain["spec"]["accepted_per_step"]
        return plain


class Acceptance:
    """Counts the verifications of all requests, and warns once if hardly any draft is accepted."""

    def __init__(self, shape: DraftShape, valid: bool, judged: bool = True) -> None:
        self.shape = shape
        self.valid = valid
        self._histogram = [0] * shape.path
        self._steps = 0
        self._accepted = 0
        self._warned = not (
            valid and judged
        )  # forced acceptance, or steps that draft nothing, tell nothing of the head

    def count(self, accepted: int) -> None:
        """One verification and its raw accepted drafts."""
        self._histogram[accepted] += 1
        self._steps += 1
        self._accepted += accepted
        if self._steps >= ENOUGH and not self._warned and self._steps + self._accepted < POOR * self._steps:
            self._warned = True
            log.warning(
                "mean acceptance length %.2f after %d steps: the head guesses almost nothing right. Likely causes: "
                "captured layers numbered by another convention (draft.layer_ids_convention), a head of another "
                "target, a wrong d2t, prompts without the chat template that the head was trained on, a wrong "
                "rope_theta of the head",
                1 + self._accepted / self._steps,
                self._steps,
            )

    def total(self) -> SpecMetrics | None:
        """All verifications so far; None with plain decoding."""
        if self.shape.depth == 0:
            return None
        return SpecMetrics.of(self._histogram, self.shape.nodes, self.valid)

    def of(self, request: Request) -> SpecMetrics | None:
        """Those of one request that has ended; None with plain decoding."""
        if self.shape.depth == 0:
            return None
        steps = request.accepted_per_step
        histogram = [steps.count(i) for i in range(self.shape.path)]
        metrics = SpecMetrics.of(histogram, self.shape.nodes, self.valid)
        assert metrics.num_spec_steps == len(steps)
        cut = 1 + len(steps) + metrics.num_accepted_draft_tokens - request.emitted
        assert 0 <= cut < self.shape.path, "only the last step of an answer is cut"
        return replace(metrics, accepted_per_step=list(steps))


def metrics(request: Request, acceptance: Acceptance) -> Metrics:
    """The metrics of a request that has ended."""

    def since(moment: float | None) -> float | None:
        return None if moment is None else 1000 * (moment - request.arrived)

    ttft, e2el, n = since(request.first_token), since(request.finished), request.emitted
    tpot = (e2el - ttft) / (n - 1) if e2el is not None and ttft is not None and n > 1 else None
    return Metrics(request.prompt_len, n, ttft, tpot, e2el, request.preemptions, acceptance.of(request))
