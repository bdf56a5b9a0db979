"""Teacher forcing: what the target alone says after each token of an answer, in plain prompt passes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3.engine.prepare import Preparer
from eagle3.engine.request import Request
from eagle3.engine.runner import Runner
from eagle3.engine.scheduler import Chunk, Scheduler
from eagle3.ops.build_tree import pack_bits
from eagle3.ops.select import topk
from eagle3.spec.accept import draw
from eagle3.spec.adjust import Adjustments
from eagle3.spec.batch import Draws, Sampling
from eagle3.spec.tree import chain
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
            logits = _adjusted(request, logits, first, preparer)
            index = batch.positions[first - start : last - start] + 1
            yield first + 1, logits, draw(logits, _spread(batch.sampling, last - first), index, batch.draws)


def _adjusted(request: Request, logits: Tensor, first: int, preparer: Preparer) -> Tensor:
    """Logits [R, V] of the rows from `first` on, as the request wants them: a chain after what was said before."""
    params, rows, device = request.sampling, logits.shape[0], logits.device
    least = params.min_new_tokens > 0 and len(params.ends) > 0
    if not (least or params.penalised):
        return logits
    before = Chunk(request, 0, max(first, request.prompt_len), last=False, emits=False)
    asked, own = preparer.asked([before]), torch.zeros(1, dtype=torch.int64, device=device)
    table = Adjustments(1, logits.shape[1], device)
    table.keep_counts()
    table.admit(own, asked)
    said = torch.tensor(request.tokens[: first + rows], device=device)
    table.read(said[: before.end], replace(asked, slots=torch.zeros_like(asked.slots)))
    rest = chain(1, rows, device)
    node = torch.arange(rows, device=device)
    path = (node <= node[:, None]) & (first + node >= request.prompt_len)
    tree = replace(rest, tokens=said[None, first:], mask=pack_bits(path)[None])
    draws = Draws(params.greedy, params.filtered, least=least, penalised=params.penalised)
    return table.of_trees(logits, own, own + first, tree, draws)


def _spread(sampling: Sampling, rows: int) -> Sampling:
    """One row's parameters for so many."""
    return sampling.map(lambda t: t.expand(rows))
