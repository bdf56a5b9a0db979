"""A head to be trained: its shapes, the target layers that it reads, the tokens that it guesses, first weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3.config.schema import EngineConfig, LayerIds, LMHead
from eagle3.errors import ConfigError, Problem, UnsupportedError, WeightError
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from eagle3.models.head_config import capture_layers
from eagle3.models.head_facts import HeadFacts, Lender
from eagle3.models.weights import dummy_weights
from eagle3.nn.rope import RopeFacts
from eagle3.train.samples import Sample, draft_vocabulary

_THETA = 10000.0  # what a reader takes a head to have that does not say, whatever its target has


@dataclass(frozen=True)
class NewHead:
    """A head and what its files must tell."""

    head: EagleHead
    layers: tuple[int, ...]  # captured outputs
    vocabulary: Tensor | None  # [Vd], target ids in the order of draft ids; None: all of them


def captured(cfg: EngineConfig, layers: int) -> tuple[int, ...]:
    """The layers of an L-layer target that a new head reads; ConfigError for those that it has not."""
    key = "train.layers_to_capture" if cfg.train.layers_to_capture else "spec.layers_to_capture"
    asked = cfg.train.layers_to_capture or cfg.spec.layers_to_capture
    try:
        return capture_layers(asked, {}, LayerIds.output, layers).outputs
    except WeightError as fault:  # of the default
        message = f"must be given: a target of {layers} layers has not three of its own at 1, L//2-1 and L-4"
        raise ConfigError([Problem("train.layers_to_capture", message, asked)]) from fault
    except ConfigError as fault:
        raise ConfigError([replace(problem, key=key) for problem in fault.problems]) from fault


def new_head(cfg: EngineConfig, target: Decoder, samples: Sequence[Sample], dtype: torch.dtype) -> NewHead:
    """A head for `target` on its device; its tokens are the most frequent of the samples' answers.

    Raises UnsupportedError for a head of another width than its target, ConfigError for layers or a vocabulary
    that the target has not.
    """
    train, lender = cfg.train, Lender.of(target)
    layers = captured(cfg, target.facts.layers)
    if (train.draft_vocab_size or 1) > target.facts.vocab:
        message = f"must be in [1, {target.facts.vocab}], the target's vocabulary, or null for all"
        raise ConfigError([Problem("train.draft_vocab_size", message, train.draft_vocab_size)])
    facts = _facts(cfg, target, len(layers))
    vocabulary = None
    if facts.mapped:
        vocabulary = draft_vocabulary(samples, facts.draft_vocab, facts.vocab)
    device = target.embed.weight.device
    length = train.seq_len
    head = EagleHead(facts, lender, max_positions=length + train.steps, max_seq_len=length, dtype=dtype, device=device)
    dummy_weights(head, train.seed)
    assert head.lm_head is not None
    if head.d2t is not None and vocabulary is not None:
        head.d2t.copy_(vocabulary - torch.arange(facts.draft_vocab))
    if train.lm_head is not LMHead.own:
        rows = (target.embed if target.lm_head is None else target.lm_head).weight.detach()
        with torch.no_grad():
            head.lm_head.weight.copy_(rows if vocabulary is None else rows[vocabulary.to(device)])
        head.lm_head.requires_grad_(train.lm_head is not LMHead.frozen)
    return NewHead(head, layers, vocabulary)


def _facts(cfg: EngineConfig, target: Decoder, captured: int) -> HeadFacts:
    """Widths as draft.architecture has them, else as a layer of the target."""
    known, inline = target.facts, cfg.draft.architecture
    if inline is None:
        size = cfg.train.draft_vocab_size or known.vocab
        return HeadFacts(
            hidden=known.hidden,
            target_hidden=known.hidden,
            captured=captured,
            intermediate=known.intermediate,
            layers=1,
            heads=known.heads,
            kv_heads=known.kv_heads,
            head_dim=known.head_dim,
            vocab=known.vocab,
            draft_vocab=size,
            eps=known.eps,
            rope=RopeFacts(_THETA, known.max_positions),
            mapped=size < known.vocab,
        )
    if inline.hidden_size != known.hidden:
        raise UnsupportedError(
            f"training a head of another width than its target is not supported: draft.architecture.hidden_size is"
            f" {inline.hidden_size}, the target's {known.hidden}"
        )
    size = cfg.train.draft_vocab_size or inline.draft_vocab_size or known.vocab
    return HeadFacts.from_architecture(replace(inline, draft_vocab_size=size), Lender.of(target), captured)
