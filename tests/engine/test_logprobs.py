"""Log-probabilities of kept tokens are those of a teacher-forced pass, whatever drafts and whoever is beside."""

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3.config.schema import SpecConfig
from eagle3.engine.engine import Engine, Result
from eagle3.engine.graphs import GraphRunner, buckets
from eagle3.errors import ConfigError
from eagle3.kv.meta import PromptMeta
from eagle3.kv.pool import KVPool
from helpers.letters import Letters
from helpers.matrix import PROMPTS, SAMPLINGS, SHAPES, models
from helpers.pairs import CPU, PLAIN, SMALL, engine, facts, random_target
from helpers.trace import assert_at_rest, preempt_often
from oracles.dense import target_pass

COUNTS = (0, None, 3, 20, None, 1, 0)
WANTED: list[dict[str, Any]] = [
    s | {"max_new_tokens": 14, "logprobs": k, "frequency_penalty": 0.5 * (i % 2), "stop": ["x"]}
    for i, (s, k) in enumerate(zip(SAMPLINGS, COUNTS, strict=True))
]


def served(pair: str, shape: str, **how: Any) -> Engine:
    target, head = models(pair, 2)
    draft = None if shape == "plain" else (head, SMALL)
    built: Engine = engine(target, draft, SHAPES.get(shape, PLAIN), tokenizer=Letters(), **how)
    return built


@cache
def forced(pair: str, tokens: tuple[int, ...]) -> Tensor:
    """Log-probabilities [T, V] after each token, of one pass over all; close to those of the slow oracle, too."""
    target, count = models(pair, 2)[0], len(tokens)
    pool, at = KVPool([(target.kv_layout, torch.float64)], 2, 64, CPU), torch.arange(count)
    sizes, table = torch.tensor([0, count], dtype=torch.int32), torch.ones(1, 1, dtype=torch.int32)
    hidden = target(torch.tensor(tokens), at, pool, PromptMeta(64 + at, sizes, sizes[1:], table, count))
    found = target.logits(hidden).log_softmax(-1)
    slow = torch.from_numpy(target_pass(target, tokens)[1]).log_softmax(-1)
    torch.testing.assert_close(found, slow, rtol=0, atol=1e-6)
    return found


def check(pair: str, result: Result, k: int | None) -> None:
    if k is None:
        assert result.logprobs is None
        return
    assert result.logprobs is not None
    rows = forced(pair, (*result.prompt_token_ids, *result.token_ids))[len(result.prompt_token_ids) - 1 :].tolist()
    assert [told.token_id for told in result.logprobs] == result.token_ids
    for told, row in zip(result.logprobs, rows, strict=False):
        assert told.logprob == pytest.approx(row[told.token_id], rel=0, abs=1e-10)
        order = [i for _, i in sorted((-value, i) for i, value in enumerate(row))][:k]
        assert [i for i, _ in told.top] == order
        assert [value for _, value in told.top] == pytest.approx([row[i] for i in order], rel=0, abs=1e-10)


@pytest.mark.parametrize("preempted", [False, True])
@pytest.mark.parametrize("shape", ["plain", "chain3", "tree4-4-16"])
@pytest.mark.parametrize("pair", ["near", "random"])
def test_they_are_a_teacher_forced_passes(pair: str, shape: str, preempted: bool) -> None:
    built, plain = served(pair, shape, batch=5, chunk=5), served(pair, "plain", batch=7)
    if preempted:
        preempt_often(built.scheduler, 3)
    results = built.generate(PROMPTS, WANTED)
    for result, alone, k in zip(results, plain.generate(PROMPTS, WANTED), COUNTS, strict=True):
        assert (result.token_ids, result.text) == (alone.token_ids, alone.text)
        check(pair, result, k)
    assert_at_rest(built)
    assert (sum(r.metrics.num_preemptions for r in results if r.metrics) > 0) == preempted


@pytest.mark.parametrize("shape", ["plain", "tree4-4-16"])
def test_in_padded_passes(shape: str) -> None:
    built = served("near", shape, batch=5)
    old, limits = built.runner, built.scheduler.limits
    width = built.scheduler.shape.pages(limits.max_seq_len, old.preparer.page)
    sizes = buckets(limits.max_batch_size), len(built.scheduler.pools), width
    built.runner = GraphRunner(old.worker, old.preparer, *sizes, prompt_rows=[16, 64], capture=False)
    for result, k in zip(built.generate(PROMPTS, WANTED), COUNTS, strict=True):
        check("near", result, k)


def test_those_of_drawn_drafts_too() -> None:
    target, head = models("near", 2)
    spec = SpecConfig(use_rejection_sampling=True, max_draft_len=3)
    built = engine(target, (head, SMALL), SHAPES["chain3"], spec=spec, batch=7)
    for result in built.generate(PROMPTS, [s | {"logprobs": 2, "max_new_tokens": 14} for s in SAMPLINGS]):
        check("near", result, 2)


def test_of_equals_the_lower_id_comes_first() -> None:
    target = random_target(facts(16))
    assert target.lm_head is not None
    target.lm_head.weight.zero_()
    (result,) = engine(target).generate([[1]], [{"logprobs": 4, "max_new_tokens": 2}])
    assert result.logprobs is not None
    for told in result.logprobs:
        assert [i for i, _ in told.top] == [0, 1, 2, 3]
        assert [value for _, value in told.top] == pytest.approx([-math.log(16)] * 4)


def test_what_cannot_be_asked_is_told() -> None:
    for wrong in (-1, 21, "x"):
        with pytest.raises(ConfigError, match="logprobs"):
            engine(models("near", 2)[0]).add([1], logprobs=wrong)
