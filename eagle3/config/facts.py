"""What rules and sizes may rely on: the inline facts of both models, where they are complete."""

from dataclasses import dataclass
from typing import TypeVar

from eagle3.config.schema import Architecture, DecodingType, EngineConfig, RuntimeConfig
from eagle3.config.shape import DraftShape

NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)

Positions = TypeVar("Positions", bound=int | None)


def longest_request(run: RuntimeConfig, positions: Positions) -> int | Positions:
    """Tokens that a request may grow to, with a target that is made for so many `positions`; None is unknown."""
    return run.max_seq_len or positions


def complete(facts: Architecture | None) -> Architecture | None:
    """The facts if none that is needed is missing or absurd, else None."""
    if facts is None:
        return None
    numbers = [getattr(facts, name) for name in NEEDED]
    return facts if all(isinstance(n, int) and n > 0 for n in numbers) else None


@dataclass(frozen=True)
class Facts:
    """Resolved facts; None where they are not known without files, or where their own rules are broken."""

    target: Architecture | None
    draft: Architecture | None  # None too where nothing drafts
    shape: DraftShape | None  # None where the depth or the width is broken

    @classmethod
    def of(cls, cfg: EngineConfig) -> "Facts":
        """The facts of a configuration that may still break rules."""
        spec = cfg.spec
        drafts = spec.decoding_type is DecodingType.eagle3
        wide = not spec.use_dynamic_tree or (spec.dynamic_tree_max_topK or 0) >= 1
        sound = spec.decoding_type is DecodingType.none or ((spec.max_draft_len or 0) >= 1 and wide)
        return cls(
            target=complete(cfg.target.architecture) if cfg.target else None,
            draft=complete(cfg.draft.architecture) if drafts else None,
            shape=DraftShape.resolve(spec) if sound else None,
        )
