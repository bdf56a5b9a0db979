"""Engines on a GPU around the tiny models of the other tests, and what they leave; on a CPU the same, run eagerly."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from eagle3.engine.engine import Engine
from eagle3.engine.graphs import GraphRunner, buckets
from eagle3.engine.prompts import most_rows, prompt_rows
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from helpers.trace import Trace, watch

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
Pair = tuple[Decoder, EagleHead]


def moved(pair: Pair, dtype: torch.dtype) -> Pair:
    """A copy of both, as one: the head borrows of the copied target."""
    target, head = deepcopy(pair)
    target.to(DEVICE, dtype)
    head.to(DEVICE, dtype).dtype = dtype
    return target, head


def padded(made: Engine, *, capture: bool) -> GraphRunner:
    """Give an engine a runner of padded passes around its worker: graphs, or the same passes eagerly."""
    old, limits = made.runner, made.scheduler.limits
    width = -(-made.scheduler.shape.entries(limits.max_seq_len) // old.preparer.page)
    known = buckets(limits.max_batch_size), len(made.scheduler.pools), width
    rows = prompt_rows(most_rows(limits))
    runner = GraphRunner(old.worker, old.preparer, *known, prompt_rows=rows, capture=capture and GPU)
    made.runner = runner
    return runner


def served(made: Engine, prompts: Sequence[Sequence[int]], samplings: Sequence[Mapping[str, Any]]) -> list[Trace]:
    """All prompts together; no page and no slot may leak."""
    traces = watch(made)
    results = made.generate(prompts, samplings)
    assert made.idle
    assert [pool.free for pool in made.scheduler.pools] == [pool.total for pool in made.scheduler.pools]
    assert len(made.scheduler._slots) == made.scheduler.limits.max_batch_size
    return [traces[result.request_id] for result in results]


def left(made: Engine) -> list[Tensor]:
    """All that requests left on the device: the pools but for page 0, the slots but for the dummy."""
    worker = made.runner.worker
    pools = [worker.pool] if worker.spec is None else [worker.pool, worker.spec.drafter.pool]
    slots = [*worker.slots.tree.tensors(), worker.slots.has_tree, worker.slots.length]
    return [group[:, 1:] for pool in pools for group in pool.groups] + [row[: worker.slots.dummy] for row in slots]
