"""The rules of a configuration: each a small function over the resolved facts that yields what it breaks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from eagle3.config import rules_engine, rules_model, rules_spec, rules_train
from eagle3.config.facts import Facts, longest_request
from eagle3.config.schema import EngineConfig, SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.config.support import BUILT, unsupported
from eagle3.errors import Problem

__all__ = ["Facts", "Findings", "check", "normalise"]

Rule = Callable[[EngineConfig, Facts], Iterator[Problem]]

ERRORS: tuple[Rule, ...] = (*rules_model.ERRORS, *rules_spec.ERRORS, *rules_engine.ERRORS, *rules_train.ERRORS)
WARNINGS: tuple[Rule, ...] = (*rules_model.WARNINGS, *rules_spec.WARNINGS, *rules_engine.WARNINGS)


@dataclass(frozen=True)
class Findings:
    """What is broken, what is merely told, and what is asked for and not built (with the feature's name)."""

    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    unsupported: tuple[tuple[str, Problem], ...]


def check(cfg: EngineConfig, facts: Facts, built: frozenset[str] = BUILT) -> Findings:
    """All findings. `built` names the features that are there."""
    missing = tuple(unsupported(cfg, built))
    refused = {problem.key for _, problem in missing}
    errors = chain.from_iterable(rule(cfg, facts) for rule in ERRORS)
    warnings = chain.from_iterable(rule(cfg, facts) for rule in WARNINGS)
    return Findings(
        tuple(problem for problem in errors if problem.key not in refused),
        tuple(problem for problem in warnings if problem.key not in refused),
        missing,
    )


def _normal_spec(spec: SpecConfig) -> SpecConfig:
    """The value that every optional field stands for; K = 1 is the chain."""
    shape = DraftShape.resolve(spec)
    if shape.depth == 0:
        return spec
    layers = sorted(set(spec.layers_to_capture)) if spec.layers_to_capture else None
    return replace(
        spec,
        use_dynamic_tree=shape.top_k > 1,
        dynamic_tree_max_topK=shape.top_k if shape.top_k > 1 else None,
        max_total_draft_tokens=shape.nodes - 1,
        layers_to_capture=layers,
    )


def normalise(cfg: EngineConfig) -> EngineConfig:
    """A configuration that broke no rule, with what was left out filled in where the facts allow it."""
    runtime, facts = cfg.runtime, Facts.of(cfg)
    longest = longest_request(runtime, facts.target.max_position_embeddings if facts.target else None)
    chunk = runtime.max_num_tokens if runtime.prompt_chunk is None else runtime.prompt_chunk
    stops = sorted(set(cfg.sampling.stop_token_ids))
    return replace(
        cfg,
        spec=_normal_spec(cfg.spec),
        runtime=replace(runtime, max_seq_len=longest, prompt_chunk=chunk),
        sampling=replace(cfg.sampling, stop_token_ids=stops),
    )
