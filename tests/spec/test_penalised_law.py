"""Penalties under the ratio test: answers have the law of the penalised target, though drafts know no penalty."""

from itertools import product

import pytest
import torch
from test_law import p_value

from eagle3.config.load import compose
from eagle3.config.schema import SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.spec.adjust import Adjustments
from helpers.pairs import engine, facts, random_head, random_target
from oracles.dense import target_pass

V, ROWS, PROMPT = 4, 1024, [2]
ASKED = {"temperature": 1.3, "repetition_penalty": 1.6, "presence_penalty": 0.7, "frequency_penalty": 0.9}


def found() -> torch.Tensor:
    """Heap indices of the first three tokens of so many answers."""
    built = engine(
        *(target, (random_head(target, seed=5), (0, 1, 2)), DraftShape(2, 1, 3)),
        batch=256, max_seq_len=8, spec=SpecConfig(use_rejection_sampling=True), page=8,
    )  # fmt: skip
    samplings = [ASKED | {"max_new_tokens": 3, "seed": i} for i in range(ROWS)]
    leaves = []
    for result in built.generate([PROMPT] * ROWS, samplings):
        at = 0
        for token in result.token_ids:
            at = 4 * at + 1 + token
        leaves.append(at)
    stats = built.stats()
    assert stats is not None
    assert sum(stats.acceptance_histogram[1:]) > ROWS // 8, "drafts are accepted"
    return torch.tensor(leaves)


target = random_target(facts(V, hidden=8, layers=3, heads=2, kv_heads=1), seed=4)


def exact() -> torch.Tensor:
    """[64], by a whole pass a prefix."""
    law = []
    for tokens in product(range(V), repeat=3):
        p = 1.0
        for i, token in enumerate(tokens):
            said = tokens[:i]
            logits = torch.from_numpy(target_pass(target, [*PROMPT, *said])[1][-1]).clone()
            for other in {*PROMPT, *said}:
                by = ASKED["repetition_penalty"]
                logits[other] = logits[other] / by if logits[other] >= 0 else logits[other] * by
            for other in set(said):
                logits[other] -= ASKED["presence_penalty"] + ASKED["frequency_penalty"] * said.count(other)
            p *= float((logits / ASKED["temperature"]).softmax(-1)[token])
        law.append(p)
    return torch.tensor(law, dtype=torch.float64)


def test_the_law_is_the_penalised_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    law = exact().numpy()
    assert p_value(found(), law) > 1e-4
    monkeypatch.setattr(Adjustments, "advance", lambda *_: None)
    assert p_value(found(), law) < 1e-9, "what was said is not counted"


def test_the_rules_let_both_through() -> None:
    both = ["spec.use_rejection_sampling=true", "sampling.frequency_penalty=0.5", "spec.enable_penalty=true"]
    chain = ["conf=tiny", "spec.use_dynamic_tree=false", "spec.max_total_draft_tokens=null"]
    made = compose([*chain, *both])
    assert {problem.key for problem in made.warnings} == {"spec.dynamic_tree_max_topK"}, "the width of conf=tiny"
