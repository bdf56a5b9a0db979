"""Stop strings in the engine: the same answers with any drafting, in any batch, preempted or not."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from eagle3.engine.engine import Engine, Result
from eagle3.errors import ConfigError
from helpers.letters import Letters
from helpers.matrix import PROMPTS, SAMPLINGS, SHAPES, models
from helpers.pairs import PLAIN, SMALL, engine
from helpers.trace import assert_at_rest, preempt_often

LETTERS = Letters()
STOPS: list[list[str] | None] = [["好", "zz"], None, ["\n"], ["fg ", "x"], [], ["ab c", "!"], ["e"]]
WANTED: list[dict[str, Any]] = [
    s | {"max_new_tokens": 24, "stop": stop} for s, stop in zip(SAMPLINGS, STOPS, strict=True)
]


def served(pair: str, shape: str, **how: Any) -> Engine:
    target, head = models(pair, 2)
    draft = None if shape == "plain" else (head, SMALL)
    return engine(target, draft, SHAPES.get(shape, PLAIN), tokenizer=LETTERS, batch=7, **how)


def streamed(built: Engine, samplings: Sequence[Mapping[str, Any]]) -> list[tuple[Result, str]]:
    """Results, and the text that was shown of each."""
    shown = [""] * len(PROMPTS)
    results: dict[int, Result] = {}
    for event in built.stream(PROMPTS, samplings):
        shown[int(event.request_id)] += event.text
        if event.result:
            results[int(event.request_id)] = event.result
    assert_at_rest(built)
    return [(results[i], shown[i]) for i in range(len(PROMPTS))]


def restated(free: Result, stops: Sequence[str]) -> tuple[list[int], str, str, str | None]:
    """From an answer without stop strings."""
    for n in range(1, len(free.token_ids) + 1):
        text = LETTERS.decode(free.token_ids[:n])
        if found := [(text.find(stop), i) for i, stop in enumerate(stops) if stop in text]:
            at, which = min(found)
            return free.token_ids[:n], text[:at], "stop", stops[which]
    return free.token_ids, LETTERS.decode(free.token_ids), "length", None


@pytest.mark.parametrize("preempted", [False, True])
@pytest.mark.parametrize("shape", ["plain", "chain3", "tree4-4-16"])
@pytest.mark.parametrize("pair", ["near", "random"])
def test_an_answer_ends_before_its_stop_string(pair: str, shape: str, preempted: bool) -> None:
    free = served(pair, "plain").generate(PROMPTS, [w | {"stop": None} for w in WANTED])
    built = served(pair, shape)
    if preempted:
        preempt_often(built.scheduler, 3)
    stopped = 0
    for (result, shown), whole, stops in zip(streamed(built, WANTED), free, STOPS, strict=True):
        want = restated(whole, stops or [])
        assert (result.token_ids, result.text, result.finish_reason, result.stopped_by) == want
        assert shown == result.text
        stopped += result.stopped_by is not None
    assert stopped >= 3


def test_the_configurations_own_stop_strings() -> None:
    built = served("near", "chain3")
    built.config.sampling.stop = ["好"]
    results = built.generate(PROMPTS, [{"max_new_tokens": 24}] * len(PROMPTS))
    assert {r.stopped_by for r in results} == {"好"}
    assert not any("好" in (r.text or "") for r in results)


def test_a_stop_string_wants_a_tokenizer_and_some_text() -> None:
    bare = engine(models("near", 2)[0])
    with pytest.raises(ConfigError, match=r"stop: wants a tokenizer"):
        bare.add([1], stop=["x"])
    for wrong in ([""], ["\ufffd"], "x"):
        with pytest.raises(ConfigError, match="stop"):
            served("near", "plain").add([1], stop=wrong)
    assert bare.add([1], stop=[]) == "0"
