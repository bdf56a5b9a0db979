"""Every rule, passing and failing, with its key and its message."""

from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from rule_tables import ASKED, FAILING, PASSING

from eagle3.config import rules, rules_spec
from eagle3.config.facts import Facts
from eagle3.config.load import compose
from eagle3.config.rules import Rule
from eagle3.config.schema import EngineConfig
from eagle3.config.shape import DraftShape
from eagle3.config.support import BUILT, FEATURES, Feature

EVERYTHING = frozenset(feature.name for feature in FEATURES)


@cache
def shipped_engine(name: str) -> EngineConfig:
    return compose([f"conf={name}"]).config


def engine(name: str, **changes: object) -> EngineConfig:
    """A shipped engine with values changed; `spec__max_draft_len=3` sets spec.max_draft_len."""
    cfg = deepcopy(shipped_engine(name))
    if name == "llama8b" and "spec__max_total_draft_tokens" not in changes:
        cfg.spec.max_total_draft_tokens = None
    for path, value in changes.items():
        *parts, last = path.split("__")
        at: Any = cfg
        for part in parts:
            at = getattr(at, part)
        setattr(at, last, value)
    return cfg


@pytest.mark.parametrize(("rule", "name", "changes", "key", "message"), FAILING)
def test_a_broken_rule_names_key_and_value_wanted(
    rule: Rule, name: str, changes: dict[str, Any], key: str, message: str
) -> None:
    cfg = engine(name, **changes)
    if rule is rules_spec.rows and name == "llama8b":  # N = 61
        cfg.spec.max_total_draft_tokens = 60

    found = list(rule(cfg, Facts.of(cfg)))

    assert [problem.key for problem in found] == [key.replace("__", ".")]
    assert message in found[0].message
    findings = rules.check(cfg, Facts.of(cfg), EVERYTHING)
    assert found[0] in (findings.errors if rule in rules.ERRORS else findings.warnings)


@pytest.mark.parametrize(("rule", "name", "changes"), PASSING)
def test_a_kept_rule_is_silent(rule: Rule, name: str, changes: dict[str, Any]) -> None:
    cfg = engine(name, **changes)

    assert list(rule(cfg, Facts.of(cfg))) == []


def test_every_rule_is_in_both_tables() -> None:
    every = {*rules.ERRORS, *rules.WARNINGS}

    assert {row[0] for row in FAILING} == every
    assert {row[0] for row in PASSING} == every


@pytest.mark.parametrize("feature", [feature for feature in FEATURES if feature.asks], ids=lambda f: f.name)
def test_a_feature_is_refused_by_name_until_it_is_built(feature: Feature) -> None:
    changes = ASKED[feature.name]
    cfg = engine("smollm2", **changes)
    key = next(iter(changes)).replace("__", ".")

    without = rules.check(cfg, Facts.of(cfg), EVERYTHING - {feature.name})
    with_it = rules.check(cfg, Facts.of(cfg), EVERYTHING)

    assert [(name, problem.key) for name, problem in without.unsupported] == [(feature.name, key)]
    assert f"{feature.name} is not built yet" in without.unsupported[0][1].message
    assert key not in {problem.key for problem in without.errors}
    assert with_it.unsupported == ()


def test_the_default_engine_asks_for_nothing_that_is_not_built() -> None:
    cfg = engine("smollm2")

    assert rules.check(cfg, Facts.of(cfg), BUILT) == rules.Findings((), (), ())


@pytest.mark.parametrize(
    ("changes", "shape", "total"),
    [
        pytest.param({}, DraftShape(6, 10, 61), 60, id="budget-defaults-to-K-D"),
        pytest.param({"spec__max_total_draft_tokens": 20}, DraftShape(6, 10, 21), 20, id="budget-kept"),
        pytest.param({"spec__use_dynamic_tree": False}, DraftShape(6, 1, 7), 6, id="width-dropped"),
        pytest.param({"spec__dynamic_tree_max_topK": 1}, DraftShape(6, 1, 7), 6, id="K-1-is-the-chain"),
    ],
)
def test_normalised_speculation(changes: dict[str, Any], shape: DraftShape, total: int) -> None:
    spec = rules.normalise(engine("llama8b", **changes)).spec

    assert DraftShape.resolve(spec) == shape
    assert spec.max_total_draft_tokens == total
    assert spec.use_dynamic_tree == (shape.top_k > 1)
    assert spec.dynamic_tree_max_topK == (shape.top_k if shape.top_k > 1 else None)


def test_normalised_lists_and_limits() -> None:
    cfg = engine("llama8b", spec__layers_to_capture=[5, -1, 5, 2], sampling__stop_token_ids=[3, 1, 3])
    cfg.runtime.max_seq_len = cfg.runtime.prompt_chunk = None

    got = rules.normalise(cfg)

    assert got.spec.layers_to_capture == [-1, 2, 5]
    assert got.sampling.stop_token_ids == [1, 3]
    assert got.runtime.max_seq_len == 131072
    assert got.runtime.prompt_chunk == got.runtime.max_num_tokens
    assert rules.normalise(engine("smollm2")).spec == engine("smollm2").spec
