"""Teacher forcing: what the target alone says after each token of an answer, in plain prompt passes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.engine.prepare import Preparer
from eagle3.engine.request import Request
from eagle3.engine.runner import Runner
from eagle3.engine.scheduler import Chunk, Scheduler
from eagle3.ops.select import topk
from eagle3.spec.accept import draw
from eagle3.spec.batch import Sampling
from eagle3.spec.worker import Worker

_ROWS = 64  # logits are made for so many rows at a time


@dataclass(frozen=True)
class Rescore:
    """Whether an answer is the target's own, and if not, where it first differs."""

    ok: bool | None  # None: not comparable, the drafts were drawn and judged by a rule that is equal in law only
    position: int | None = None  # in the answer
    token: int | None = None
    target_token: int | None = None
    gap: float | None = None  # between the target's two largest logits there: rounding explains a small one


def rescore(request: Request, runner: Runner, scheduler: Scheduler) -> Rescore:
    """Compare each token after the prompt with the target's own: its argmax, or its draw for that place.

    Borrows pages of the target's pool, whose scheduler must be idle; no slot is touched.
    """
    worker, pages, limits = runner.worker, scheduler.pools[0], scheduler.limits
    if worker.slots.probs is not None and not request.sampling.greedy:
        return Rescore(None)
    known = len(request.tokens) - 1  # the last token is judged, not read
    owned: list[int] = []
    fits = pages.grow(owned, known)
    assert fits, "an idle pool holds every request that it took"
    request.pages, request.prefill = [owned], known
    request.slot = worker.slots.dummy  # of a context only its number is asked for
    try:
        for place, logits, own in _rows(request, worker, runner.preparer, limits.max_num_tokens):
            wanted = torch.tensor(request.tokens[place : place + len(own)], device=own.device)
            wrong = (own != wanted).nonzero()
            if len(wrong):
                return _difference(request, place, int(wrong[0]), logits, own)
    finally:
        pages.release(owned)
    return Rescore(True)


def _difference(request: Request, place: int, row: int, logits: Tensor, own: Tensor) -> Rescore:
    """Row `row` differs, of those that predict the tokens from `place` on."""
    best = topk(logits[row : row + 1], 2)[0][0]
    return Rescore(
        ok=False,
        position=place + row - request.prompt_len,
        token=request.tokens[place + row],
        target_token=int(own[row]),
        gap=float(best[0] - best[1]),
    )


@torch.inference_mode()
def _rows(request: Request, worker: Worker, preparer: Preparer, most: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Places in the sequence, the logits [R, V] that predict the R tokens from there on, and the target's own [R]."""
    for start in range(0, request.prefill, most):
        end = min(start + most, request.prefill)
        batch = preparer.contexts([Chunk(request, start, end, last=False, emits=False)])
        hidden = worker.target(batch.ids, batch.positions, worker.pool, batch.metas[0])
        for first in range(max(start, request.prompt_len - 1), end, _ROWS):
            last = min(first + _ROWS, end)
            logits = worker.target.logits(hidden[first - start : last - start])
            index = batch.positions[first - start : last - start] + 1
            yield first + 1, logits, draw(logits, _spread(batch.sampling, last - first), index, batch.draws)


def _spread(sampling: Sampling, rows: int) -> Sampling:
    """One row's parameters for so many."""
    return sampling.map(lambda t: t.expand(rows))
