"""Penalties, least lengths and log-probabilities on a GPU: graphs, the same passes eagerly, and float64 on the CPU."""

import pytest
import torch
from gpu_engines import moved, padded

from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Result
from helpers.asked import ENDS, WANTED
from helpers.matrix import PROMPTS, models
from helpers.pairs import PLAIN, SMALL, engine
from helpers.trace import preempt_often

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("whole_products")]
SHAPES = {
    "plain": PLAIN,
    "chain4": DraftShape(depth=4, top_k=1, nodes=5),
    "tree4-4-16": DraftShape(depth=4, top_k=4, nodes=17),
    "tree6-8-40": DraftShape(depth=8, top_k=6, nodes=41),
}
ASKED = [w | {"max_new_tokens": 12, "logprobs": (None, 3, 0)[i % 3]} for i, w in enumerate(WANTED)]


def run(pair: str, shape: str, capture: bool | None, preempted: bool = False) -> list[Result]:
    """By graphs, by the same passes run eagerly, or (None) plainly in float64."""
    target, head = models(pair, 2) if capture is None else moved(models(pair, 2), torch.float32)
    draft = None if shape == "plain" else (head, SMALL)
    made = engine(target, draft, SHAPES[shape], batch=5, max_seq_len=32, chunk=7, ends=ENDS)
    if capture is not None:
        padded(made, capture=capture)
    if preempted:
        preempt_often(made.scheduler, 3)
    return made.generate(PROMPTS, ASKED)


@pytest.mark.parametrize("preempted", [False, True])
@pytest.mark.parametrize("pair", ["near", "random"])
@pytest.mark.parametrize("shape", SHAPES)
def test_graphs_say_what_the_target_says(shape: str, pair: str, preempted: bool) -> None:
    graphs, eager = (run(pair, shape, capture, preempted) for capture in (True, False))
    for captured, passed, alone in zip(graphs, eager, run(pair, "plain", None), strict=True):
        assert captured.token_ids == passed.token_ids == alone.token_ids
        assert captured.logprobs == passed.logprobs
        assert (captured.logprobs is None) == (alone.logprobs is None)
        for told, exact in zip(captured.logprobs or (), alone.logprobs or (), strict=True):
            assert told.logprob == pytest.approx(exact.logprob, abs=1e-4)
            assert [v for _, v in told.top] == pytest.approx([v for _, v in exact.top], abs=1e-4)
