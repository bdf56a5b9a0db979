"""Rules of speculation: EAGLE-3's depth, width, budget and captured layers."""

from collections.abc import Iterator
from dataclasses import fields

from eagle3.config.facts import Facts
from eagle3.config.schema import DecodingType, EngineConfig, LoadFormat, SpecConfig
from eagle3.config.shape import default_capture
from eagle3.errors import Problem


def _drafts(cfg: EngineConfig) -> bool:
    return cfg.spec.decoding_type is DecodingType.eagle3


def fields_without_drafting(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Plain decoding takes no field of speculation."""
    if cfg.spec.decoding_type is not DecodingType.none:
        return
    plain = SpecConfig()
    for field in fields(SpecConfig):
        value = getattr(cfg.spec, field.name)
        if value != getattr(plain, field.name):
            message = "needs drafting; choose spec=chain or spec=tree"
            yield Problem(f"spec.{field.name}", message, value)


def depth(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Drafting needs a depth of at least 1."""
    if _drafts(cfg) and (cfg.spec.max_draft_len or 0) < 1:
        yield Problem("spec.max_draft_len", "must be at least 1 to draft", cfg.spec.max_draft_len)


def head(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Drafting needs a head, though random weights need no files."""
    if _drafts(cfg) and cfg.draft.checkpoint is None and cfg.draft.load_format is not LoadFormat.dummy:
        message = "EAGLE-3 needs a head: draft=eagle3 draft.checkpoint=…; spec=none decodes plainly"
        yield Problem("draft.checkpoint", message, None)


def width(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """A tree needs a width of at least 1."""
    spec = cfg.spec
    if _drafts(cfg) and spec.use_dynamic_tree and (spec.dynamic_tree_max_topK or 0) < 1:
        message = "must be at least 1 with use_dynamic_tree"
        yield Problem("spec.dynamic_tree_max_topK", message, spec.dynamic_tree_max_topK)


def budget(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """A chain's budget is its depth; a tree's is from D to K·D."""
    spec, shape = cfg.spec, facts.shape
    total = spec.max_total_draft_tokens
    if not _drafts(cfg) or shape is None or total is None:
        return
    low, high = shape.depth, shape.top_k * shape.depth
    if shape.top_k == 1 and total != low:
        message = f"must be max_draft_len ({low}) for a chain; leave it null, or use spec=tree"
        yield Problem("spec.max_total_draft_tokens", message, total)
    elif not low <= total <= high:
        message = f"must be in [{low}, {high}]: max_draft_len to dynamic_tree_max_topK · max_draft_len, or null for all"
        yield Problem("spec.max_total_draft_tokens", message, total)


def draft_vocabulary(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """A step cannot keep more children than the head has tokens."""
    if not _drafts(cfg) or facts.shape is None or not cfg.spec.use_dynamic_tree:
        return
    size = facts.draft.draft_vocab_size if facts.draft else None
    size = size or (facts.target.vocab_size if facts.target else None)
    if size is not None and facts.shape.top_k > size:
        message = f"must be at most the head's vocabulary ({size})"
        yield Problem("spec.dynamic_tree_max_topK", message, facts.shape.top_k)


def capture_ids(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """Explicit layers exist: 0 … L-1, or -1 for the hidden state after the last norm."""
    layers = cfg.spec.layers_to_capture
    if not _drafts(cfg) or layers is None:
        return
    if not layers:
        yield Problem("spec.layers_to_capture", "must name at least one layer, or be null", layers)
    last = facts.target.num_hidden_layers - 1 if facts.target else None
    wrong = [i for i in layers if i < -1 or (last is not None and i > last)]
    if wrong:
        top = "L-1" if last is None else last
        message = f"must be in [0, {top}] (outputs of layers) or -1 (after the last norm); not {wrong}"
        yield Problem("spec.layers_to_capture", message, layers)


def capture_default(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """The default layers 1, L//2-1, L-4 are three different ones only from 7 layers on."""
    if not _drafts(cfg) or cfg.spec.layers_to_capture is not None or facts.target is None:
        return
    count = facts.target.num_hidden_layers
    if 1 < count <= 5:
        message = f"must be given: {count} layers are too few for the default 1, L//2-1, L-4"
        yield Problem("spec.layers_to_capture", message, None)
    elif len(set(default_capture(count))) < len(default_capture(count)):
        message = f"must be given: with {count} layers the default {default_capture(count)} repeats one"
        yield Problem("spec.layers_to_capture", message, None)


def rows(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """Every running request's tree fits one step."""
    limit, batch, shape = cfg.runtime.max_num_tokens, cfg.runtime.max_batch_size, facts.shape
    if shape is not None and batch >= 1 and limit >= 1 and batch * shape.nodes > limit:
        message = f"must be at least max_batch_size · N = {batch} · {shape.nodes} = {batch * shape.nodes}"
        yield Problem("runtime.max_num_tokens", message, limit)


def synthetic(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """A forced mean length lies between nothing and everything accepted."""
    mean = cfg.spec.synthetic_acceptance
    if not _drafts(cfg) or mean is None or facts.shape is None:
        return
    if not 1 <= mean <= facts.shape.path:
        message = f"must be in [1, {facts.shape.path}]: a mean length, bonus included"
        yield Problem("spec.synthetic_acceptance", message, mean)


def synthetic_tree(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """A tree's path of first children may end before the length that is asked for."""
    if _drafts(cfg) and cfg.spec.synthetic_acceptance is not None and facts.shape and facts.shape.top_k > 1:
        message = "follows first children, whose path may be shorter in a tree: look at the mean that is reported"
        yield Problem("spec.synthetic_acceptance", message, cfg.spec.synthetic_acceptance)


def width_without_tree(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Without the tree a width is dropped."""
    spec = cfg.spec
    if _drafts(cfg) and spec.dynamic_tree_max_topK is not None and not spec.use_dynamic_tree:
        message = "is dropped without use_dynamic_tree: a chain is drafted"
        yield Problem("spec.dynamic_tree_max_topK", message, spec.dynamic_tree_max_topK)


def rejection_with_tree(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """A tree's candidates are a fixed set, so rejection sampling accepts no more."""
    if _drafts(cfg) and cfg.spec.use_rejection_sampling and facts.shape and facts.shape.top_k > 1:
        yield Problem("spec.use_rejection_sampling", "has no effect with a tree", True)


def capture_repeats(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Each layer is captured once."""
    layers = cfg.spec.layers_to_capture
    if _drafts(cfg) and layers and len(set(layers)) < len(layers):
        message = f"repeats are dropped: {sorted(set(layers))} is captured"
        yield Problem("spec.layers_to_capture", message, layers)


ERRORS = (
    fields_without_drafting,
    depth,
    head,
    width,
    budget,
    draft_vocabulary,
    capture_ids,
    capture_default,
    rows,
    synthetic,
)
WARNINGS = (synthetic_tree, width_without_tree, rejection_with_tree, capture_repeats)
