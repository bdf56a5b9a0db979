"""Least lengths and penalties: what a slow loop over whole sequences says, with any drafting, in any batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3.build.engine import build_engine
from eagle3.config.load import compose
from eagle3.config.schema import SpecConfig
from eagle3.config.sizes import memory_sum
from eagle3.engine.engine import Engine
from eagle3.engine.graphs import GraphRunner, buckets
from eagle3.errors import ConfigError
from eagle3.ops.sample import sample_torch
from eagle3.spec.adjust import Adjustments
from helpers.asked import ENDS, WANTED
from helpers.letters import Letters
from helpers.matrix import PROMPTS, SAMPLINGS, SHAPES, models
from helpers.pairs import PLAIN, SMALL, engine
from helpers.trace import Trace, preempt_often, serve
from oracles.dense import target_pass


def adjusted(logits: Tensor, prompt: Sequence[int], answer: Sequence[int], asked: Mapping[str, Any]) -> Tensor:
    """The logits [V] after prompt and answer, token by token."""
    out = logits.clone()
    ends = {*asked.get("stop_token_ids", ()), *(() if asked.get("ignore_eos") else ENDS)}
    for token in range(len(out)):
        count = list(answer).count(token)
        if count or token in prompt:
            by = asked.get("repetition_penalty", 1.0)
            out[token] = out[token] / by if out[token] >= 0 else out[token] * by
        out[token] -= count * asked.get("frequency_penalty", 0.0) + (count > 0) * asked.get("presence_penalty", 0.0)
        if token in ends and len(answer) < asked.get("min_new_tokens", 0):
            out[token] = -torch.inf
    return out


@cache
def restated(pair: str, request: int) -> list[int]:
    """The answer, one whole pass a token."""
    prompt, asked, answer = PROMPTS[request], WANTED[request], list[int]()
    ends = {*asked.get("stop_token_ids", ()), *(() if asked.get("ignore_eos") else ENDS)}
    while len(answer) < asked["max_new_tokens"] and not ends & set(answer):
        logits = torch.from_numpy(target_pass(models(pair, 2)[0], [*prompt, *answer])[1][-1])
        row = adjusted(logits, prompt, answer, asked)[None]
        settings = torch.tensor([asked["temperature"]]), torch.tensor([0]), torch.tensor([asked["top_p"]])
        place = torch.tensor([asked["seed"]]), torch.tensor([len(prompt) + len(answer)])
        answer += sample_torch(row, *settings, torch.tensor([0.0]), *place).tolist()
    return answer


def served(pair: str, shape: str, **how: Any) -> Engine:
    target, head = models(pair, 2)
    draft = None if shape == "plain" else (head, SMALL)
    built: Engine = engine(target, draft, SHAPES.get(shape, PLAIN), ends=ENDS, **how)
    return built


def run(built: Engine) -> list[Trace]:
    found = serve(built, PROMPTS, WANTED)
    rest = Adjustments(7, 16, torch.device("cpu"))
    rest.keep_counts()
    now = built.runner.worker.slots.adjust.terms
    assert all(torch.equal(a[:7], b[:7]) for a, b in zip(now, rest.terms, strict=True)), "slots come back to rest"
    return found


@pytest.mark.parametrize("preempted", [False, True])
@pytest.mark.parametrize("shape", ["plain", "chain1", "chain7", "tree2-3-6", "tree4-4-16", "tree10-6-60"])
@pytest.mark.parametrize("pair", ["near", "random"])
def test_answers_are_the_slow_loops(pair: str, shape: str, preempted: bool) -> None:
    built = served(pair, shape, batch=7, chunk=5)
    if preempted:
        preempt_often(built.scheduler, 3)
    found = run(built)
    assert [t.tokens for t in found] == [restated(pair, i) for i in range(len(PROMPTS))]
    assert (sum(t.preemptions for t in found) > 0) == preempted
    if shape != "plain":
        assert sum(n for t in found for n in t.accepted) >= (15 if pair == "near" else 5)


def no_path(patcher: pytest.MonkeyPatch) -> None:
    sound = Adjustments.of_trees
    patcher.setattr(
        Adjustments, "of_trees", lambda s, x, i, n, tree, d: sound(s, x, i, n, replace(tree, mask=0 * tree.mask), d)
    )


def rejected_counted(patcher: pytest.MonkeyPatch) -> None:
    sound = Adjustments.advance
    patcher.setattr(Adjustments, "advance", lambda s, i, r, t, n: sound(s, i, r, t, n + (n > 0)))


def last_one_only(patcher: pytest.MonkeyPatch) -> None:
    sound = Adjustments.advance
    patcher.setattr(Adjustments, "advance", lambda s, i, r, t, n: sound(s, i, r, t, n.clamp(max=1)))


def index_of_the_root(patcher: pytest.MonkeyPatch) -> None:
    sound = Adjustments.of_trees
    patcher.setattr(
        Adjustments, "of_trees", lambda s, x, i, n, tree, d: sound(s, x, i, n, replace(tree, depth=0 * tree.depth), d)
    )


@pytest.mark.parametrize("fault", [no_path, rejected_counted, last_one_only, index_of_the_root])
def test_a_fault_is_seen(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    strong: list[dict[str, Any]] = [
        s | {"max_new_tokens": 30, "frequency_penalty": 2.0 - i / 4, "min_new_tokens": i, "ignore_eos": i % 2 > 0}
        for i, s in enumerate(SAMPLINGS)
    ]

    def said(shape: str) -> list[list[int]]:
        return [t.tokens for t in serve(served("near", shape, batch=7), PROMPTS, strong)]

    want = said("plain")
    assert said("tree4-4-16") == want
    fault(monkeypatch)
    assert said("tree4-4-16") != want


@pytest.mark.parametrize("field", ["repetition_penalty", "presence_penalty", "frequency_penalty", "min_new_tokens"])
def test_each_of_them_changes_what_is_said(field: str) -> None:
    value = {"min_new_tokens": 16}.get(field, 2.0)
    free, asked = (
        served("near", "tree4-4-16").generate(PROMPTS, [s | {"max_new_tokens": 16} | own for s in SAMPLINGS])
        for own in ({}, {field: value})
    )
    assert [r.token_ids for r in free] != [r.token_ids for r in asked]


@pytest.mark.parametrize("shape", ["plain", "chain3", "tree4-4-16"])
def test_in_padded_passes(shape: str) -> None:
    """As graphs run them: the prompts that ask eagerly, generations by buckets."""
    built = served("near", shape, batch=5)
    old, limits = built.runner, built.scheduler.limits
    width = built.scheduler.shape.pages(limits.max_seq_len, old.preparer.page)
    sizes = buckets(limits.max_batch_size), len(built.scheduler.pools), width
    built.runner = GraphRunner(old.worker, old.preparer, *sizes, prompt_rows=[16, 64], capture=False)
    found = serve(built, PROMPTS, WANTED)
    assert [t.tokens for t in found] == [restated("near", i) for i in range(len(PROMPTS))]


def test_one_after_the_other_in_one_slot() -> None:
    built = served("near", "tree4-4-16", batch=1)
    assert [t.tokens for t in serve(built, PROMPTS, WANTED)] == [restated("near", i) for i in range(len(PROMPTS))]


@pytest.mark.parametrize("pair", ["near", "random"])
def test_rescoring_asks_the_same(pair: str) -> None:
    built = served(pair, "tree4-4-16", batch=7)
    results = built.generate(PROMPTS, WANTED)
    assert all(built.rescore(r).ok for r in results)
    unasked = [built.rescore(replace(r, sampling=plain.sampling)).ok for r, plain in zip(
        results, built.generate(PROMPTS, [s | {"max_new_tokens": 16} for s in SAMPLINGS]), strict=True
    )]  # fmt: skip
    assert unasked.count(False) >= 3


def test_answers_are_at_least_so_long_and_stop_strings_wait_too() -> None:
    built = served("near", "chain3", tokenizer=Letters(), batch=7)
    asked = {"min_new_tokens": 10, "max_new_tokens": 40, "stop": ["\n", "e", "x"]}
    lengths = [len(r.token_ids) for r in built.generate(PROMPTS, [s | asked for s in SAMPLINGS])]
    short = [len(r.token_ids) for r in built.generate(PROMPTS, [s | asked | {"min_new_tokens": 0} for s in SAMPLINGS])]
    assert min(lengths) > 10 > max(short)
    assert max(lengths) < 40


def test_drawn_drafts_take_the_targets_adjusted_logits() -> None:
    """Greedy rows of the ratio test are the target's own."""
    target, head = models("near", 2)
    spec = SpecConfig(use_rejection_sampling=True, max_draft_len=3)
    built = engine(target, (head, SMALL), SHAPES["chain3"], ends=ENDS, spec=spec, batch=7)
    greedy = [i for i, w in enumerate(WANTED) if w["temperature"] == 0]
    found = serve(built, [PROMPTS[i] for i in greedy], [WANTED[i] for i in greedy])
    assert [t.tokens for t in found] == [restated("near", i) for i in greedy]


def test_a_batch_without_them_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    built = served("near", "tree4-4-16")

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("nobody asked")

    monkeypatch.setattr("eagle3.spec.adjust.adjust", refused)
    built.generate(PROMPTS, [s | {"max_new_tokens": 8} for s in SAMPLINGS])
    assert built.runner.worker.slots.adjust.terms.written.numel() == 0
    with pytest.raises(AssertionError, match="nobody asked"):
        built.generate([[1]], [{"presence_penalty": 0.5}])


def test_counts_are_there_from_the_start_where_the_configuration_asks() -> None:
    """As large as the memory sum says."""
    overrides = ["conf=tiny", "runtime.device=cpu", "runtime.max_batch_size=3"]
    for more in (["spec.enable_penalty=true"], ["sampling.frequency_penalty=1"], []):
        composed = compose([*overrides, *more])
        terms = build_engine(composed).runner.worker.slots.adjust.terms
        rows = dict(memory_sum(composed.config, composed.shape))
        assert terms.written.nbytes + terms.prompted.nbytes == rows.get("counts for penalties", 0)
        assert ("counts for penalties" in rows) == bool(more)


def test_what_cannot_be_asked_is_told() -> None:
    built = served("near", "plain")
    for wrong in ({"presence_penalty": 2.5}, {"repetition_penalty": 0}, {"min_new_tokens": 5, "max_new_tokens": 4}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            built.add([1], **wrong)
    built.end_ids = frozenset(range(65))
    with pytest.raises(ConfigError, match="min_new_tokens: goes with 64 stop ids at most"):
        built.add([1], min_new_tokens=1)
