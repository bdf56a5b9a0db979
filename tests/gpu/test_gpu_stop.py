"""draft.context_limit=stop_drafting on a GPU: graphs, the same passes eagerly, and float64 on the CPU."""

import pytest
import torch
from gpu_engines import moved, padded, served

from eagle3.config.shape import DraftShape
from helpers.matrix import PROMPTS, SAMPLINGS, models
from helpers.pairs import SMALL, engine
from helpers.trace import Trace, preempt_often

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("whole_products")]
LIMIT = 14  # some prompts stand below it and outgrow it, one is longer
SHAPES = {
    "chain4": DraftShape(depth=4, top_k=1, nodes=5),
    "tree4-4-16": DraftShape(depth=4, top_k=4, nodes=17),
}


def run(shape: str, capture: bool | None, preempted: bool, stop_at: int | None = LIMIT) -> list[Trace]:
    """By graphs, by the same passes run eagerly, or (None) eagerly in float64 on the CPU."""
    target, head = models("near", 2) if capture is None else moved(models("near", 2), torch.float32)
    made = engine(target, (head, SMALL), SHAPES[shape], batch=5, max_seq_len=48, chunk=7, stop_at=stop_at)
    if capture is not None:
        padded(made, capture=capture)
    if preempted:
        preempt_often(made.scheduler, 3)
    return served(made, PROMPTS, [s | {"max_new_tokens": 14} for s in SAMPLINGS])


@pytest.mark.parametrize("preempted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_graphs_stop_where_the_cpu_stops(shape: str, preempted: bool) -> None:
    graphs, eager, cpu = (run(shape, capture, preempted) for capture in (True, False, None))
    assert graphs == eager == cpu
    on = run(shape, None, preempted, stop_at=None)
    assert [t.tokens for t in on] == [t.tokens for t in cpu]
    assert sum(sum(t.accepted) for t in on) > sum(sum(t.accepted) for t in cpu) > 0
