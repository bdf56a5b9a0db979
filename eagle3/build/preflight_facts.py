"""A configuration with the facts that its files tell, so that rules and sums over inline facts serve for files too."""

from collections.abc import Iterator
from dataclasses import replace

from eagle3.config import rules
from eagle3.config.facts import longest_request
from eagle3.config.schema import Architecture, DecodingType, EngineConfig
from eagle3.errors import Problem
from eagle3.models.decoder import ModelFacts
from eagle3.models.head_facts import HeadFacts
from eagle3.models.headers import HeadLook


def with_facts(cfg: EngineConfig, target: ModelFacts | None, head: HeadLook | None) -> EngineConfig:
    """`cfg`, where it carries no facts of a model those of its files; and the layers that the head captures."""
    spec, run = cfg.spec, cfg.runtime
    of_target, of_head = cfg.target.architecture, cfg.draft.architecture
    if of_target is None and target is not None:
        of_target = _of_target(target)
    if of_head is None and head is not None and head.facts is not None:
        of_head = _of_head(head.facts)
    if head is not None and head.choice is not None:
        spec = replace(spec, layers_to_capture=list(head.choice.outputs))
    longest = longest_request(run, None if target is None else target.max_positions)
    return replace(
        cfg,
        target=replace(cfg.target, architecture=of_target),
        draft=replace(cfg.draft, architecture=of_head),
        spec=spec,
        runtime=replace(run, max_seq_len=longest),
    )


def _of_target(facts: ModelFacts) -> Architecture:
    return Architecture(
        architecture=facts.architecture,
        hidden_size=facts.hidden,
        intermediate_size=facts.intermediate,
        num_hidden_layers=facts.layers,
        num_attention_heads=facts.heads,
        num_key_value_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        vocab_size=facts.vocab,
        max_position_embeddings=facts.max_positions,
        rms_norm_eps=facts.eps,
        rope_theta=facts.rope.theta,
        tie_word_embeddings=facts.tied,
    )


def _of_head(facts: HeadFacts) -> Architecture:
    return Architecture(
        hidden_size=facts.hidden,
        intermediate_size=facts.intermediate,
        num_hidden_layers=facts.layers,
        num_attention_heads=facts.heads,
        num_key_value_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        vocab_size=facts.vocab,
        max_position_embeddings=facts.rope.max_position_embeddings,
        rms_norm_eps=facts.eps,
        rope_theta=facts.rope.theta,
        draft_vocab_size=facts.draft_vocab,
        target_hidden_size=facts.target_hidden,
    )


def rules_again(cfg: EngineConfig, filled: EngineConfig, told: set[str]) -> tuple[list[Problem], list[Problem]]:
    """Errors and warnings of the rules that only the files' facts let speak; `told` are keys that are told already."""
    if (cfg.target.architecture, cfg.draft.architecture) == (filled.target.architecture, filled.draft.architecture):
        return [], []
    before, now = (rules.check(c, rules.Facts.of(c)) for c in (cfg, filled))
    warned = {problem.key for problem in before.warnings}
    drafts = cfg.spec.decoding_type is not DecodingType.none

    def new(found: tuple[Problem, ...], known: set[str]) -> Iterator[Problem]:
        for problem in found:
            told = problem.key in known or problem.key.rpartition(".")[0] in known  # of a whole group's facts
            if not told and (drafts or not problem.key.startswith("draft.")):
                yield problem

    return list(new(now.errors, told)), list(new(now.warnings, warned))
