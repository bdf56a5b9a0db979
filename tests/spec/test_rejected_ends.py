"""What a draft proposes ends nothing, and what an answer counts is what it keeps."""

from typing import Any

import pytest
import torch

from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from helpers.letters import Letters
from helpers.pairs import LAYERS, SMALL, cycle_pair, engine, random_pair
from helpers.scripted import follow
from helpers.trace import serve

CHAIN = DraftShape(depth=3, top_k=1, nodes=4)
PROMPT = [1, 2, 3]


@pytest.mark.parametrize("right_before", [0, 1, 2])
def test_a_proposed_end_that_the_target_rejects_ends_nothing(right_before: int) -> None:
    target, head = random_pair(16, hidden=16)
    asked = {"max_new_tokens": 20}
    (plain,) = serve(engine(target), [PROMPT], [asked])
    end = next(t for t in range(16) if t not in plain.tokens)
    # of each four places, so many hold the target's own token, and all others an end
    sequence = [*PROMPT, *plain.tokens] + [end] * 8
    script = [t if i < len(PROMPT) or i % 4 < right_before else end for i, t in enumerate(sequence)]
    built = engine(target, (head, LAYERS), CHAIN, batch=1, ends=frozenset({end}))
    follow(built, torch.tensor([script, script]))
    (trace,) = serve(built, [PROMPT], [asked])
    assert (trace.tokens, trace.reason) == (plain.tokens, "length")
    assert max(trace.accepted) == right_before


def cycle(**more: Any) -> Engine:
    target, head = cycle_pair(16, layers=4)
    made: Engine = engine(target, (head, SMALL), CHAIN, max_seq_len=64, **more)
    return made


@pytest.mark.parametrize("asked", [{"stop_token_ids": [7]}, {"max_new_tokens": 6}], ids=["stop", "length"])
def test_tokens_are_counted_as_they_are_kept(asked: dict[str, object]) -> None:
    (result,) = cycle().generate([[0]], [{"max_new_tokens": 30} | asked])
    assert result.metrics is not None
    assert result.metrics.spec is not None
    assert result.metrics.num_output_tokens == len(result.token_ids)
    accepted = result.metrics.spec.num_accepted_draft_tokens
    assert 1 + accepted + result.metrics.spec.num_spec_steps > len(result.token_ids), "the last run was cut"


def test_neither_an_end_nor_what_is_behind_it_is_text() -> None:
    letters = Letters()
    events = list(cycle(tokenizer=letters).stream([[0]], [{"stop_token_ids": [10]}]))
    result = events[-1].result
    assert result is not None
    assert result.token_ids == list(range(1, 11))
    assert result.text == "".join(e.text for e in events) == letters.decode(range(1, 10))


def test_a_longer_answer_after_a_shorter_one() -> None:
    served = cycle()
    for new in (2, 40, 5, 60):
        (trace,) = serve(served, [[0]], [{"max_new_tokens": new}])
        assert trace.tokens == [(1 + i) % 16 for i in range(new)]
