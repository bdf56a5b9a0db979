"""One decoder for all families: embedding, layers, norm and head, driven by the facts of a config.json."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from eagle3.config.rules_model import head_counts
from eagle3.config.schema import Architecture
from eagle3.config.support import TARGETS
from eagle3.errors import UnsupportedError, WeightError
from eagle3.kv.meta import AttnMeta
from eagle3.kv.pool import KVLayout, KVPool
from eagle3.models.fact_lines import differing, rope_pairs
from eagle3.models.families import Family, family
from eagle3.models.target_config import read_config
from eagle3.nn.attention import Attention, Core, PagedCore
from eagle3.nn.embedding import Embedding
from eagle3.nn.linear import Linear
from eagle3.nn.mlp import MLP
from eagle3.nn.norm import RMSNorm
from eagle3.nn.rope import Rope, RopeFacts, Rotation
from eagle3.parallel import TP

if TYPE_CHECKING:
    from transformers import PretrainedConfig

OnLayer = Callable[[int, Tensor, Tensor | None], None]

# field of ModelFacts -> key of a config.json, where the value is taken as it is
_KEYS = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "max_positions": "max_position_embeddings",
    "eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
_OTHER_KEYS = {
    "kv_heads": "num_key_value_heads",
    "windows": "sliding_window, layer_types",
}


@dataclass(frozen=True)
class ModelFacts:
    """All that shapes, memory and arithmetic of a decoder depend on, with nothing left open."""

    architecture: str
    hidden: int  # H
    intermediate: int
    layers: int  # L
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int  # V
    max_positions: int  # positions the model was made for
    eps: float
    tied: bool  # the embedding is the output head
    attention_bias: bool  # on q, k, v and o; a family's own on q, k, v comes with the family
    mlp_bias: bool
    rope: RopeFacts
    windows: tuple[int | None, ...] = ()  # by layer: positions a row looks back, itself included (None: all); (): all

    @classmethod
    def from_architecture(cls, inline: Architecture) -> "ModelFacts":
        """From the facts that a configuration carries."""
        rope = RopeFacts.of(inline.rope_theta, inline.max_position_embeddings, inline.rope_scaling)
        return cls._of(inline, inline.architecture, rope)

    @classmethod
    def from_hf(cls, source: "PretrainedConfig | Path") -> "ModelFacts":
        """From a transformers config, or a folder that holds a config.json; no remote code is run.

        Raises WeightError for a config.json that cannot be read, UnsupportedError for a model we do not have.
        """
        config = read_config(source) if isinstance(source, Path) else source
        try:
            return cls._from_config(config)
        except (UnsupportedError, WeightError) as fault:
            raise type(fault)(
                f"{source / 'config.json'}: {fault}" if isinstance(source, Path) else str(fault)
            ) from fault
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as fault:
            raise WeightError(f"config.json of {source} makes no sense: {type(fault).__name__} {fault}") from fault

    @classmethod
    def _from_config(cls, config: "PretrainedConfig") -> "ModelFacts":
        architecture = (config.architectures or ["(none named)"])[0]
        family(architecture)
        if getattr(config, "quantization_config", None) is not None:
            raise UnsupportedError("quantised weights (quantization_config) are not supported")
        if (act := config.hidden_act) != "silu":
            raise UnsupportedError(f"activation {act!r} (hidden_act) is not supported; known: silu")
        parameters = config.rope_parameters or {}
        rope = RopeFacts.of(config.default_theta, config.max_position_embeddings, parameters)
        facts = cls._of(config, architecture, rope)
        counts = head_counts(facts.heads, facts.kv_heads, facts.head_dim)
        if wrong := [f"{key} {message}, not {value}" for key, message, value in counts]:
            raise WeightError(f"makes no sense: {'; '.join(wrong)}")
        return facts

    @classmethod
    def _of(cls, source: Any, architecture: str, rope: RopeFacts) -> "ModelFacts":  # noqa: ANN401
        family(architecture)
        has = TARGETS[architecture]
        return cls(
            architecture=architecture,
            kv_heads=source.num_key_value_heads or source.num_attention_heads,
            head_dim=getattr(source, "head_dim", None) or source.hidden_size // source.num_attention_heads,
            attention_bias="attention_bias" in has and source.attention_bias,
            mlp_bias="mlp_bias" in has and source.mlp_bias,
            rope=rope,
            windows=_windows(
                source.sliding_window if "sliding_window" in has else None,
                getattr(source, "layer_types", None),
                source.num_hidden_layers,
                architecture,
            ),
            **{name: getattr(source, key) for name, key in _KEYS.items()},
        )

    @property
    def family(self) -> Family:
        """Flags and names of this architecture."""
        return family(self.architecture)

    @property
    def window(self) -> int | None:
        """Of the layer that looks back furthest."""
        wide = [window for window in self.windows if window is not None]
        return max(wide) if wide and len(wide) == self.layers else None

    @property
    def tied_names(self) -> Mapping[str, str]:
        """Tensors that a checkpoint of this model may ship as copies of others; see `load_weights`."""
        return self.family.tied if self.tied else {}

    def differences(self, other: "ModelFacts") -> list[str]:
        """One line for every fact in which two descriptions of a model disagree: its key, ours, theirs."""
        names = [field.name for field in fields(self) if field.name != "rope"]
        pairs = {_KEYS.get(n) or _OTHER_KEYS.get(n, n): (getattr(self, n), getattr(other, n)) for n in names}
        return differing(pairs | rope_pairs(self.rope, other.rope))


def _windows(window: int | None, kinds: Sequence[str] | None, layers: int, architecture: str) -> tuple[int | None, ...]:
    """Each layer's window, none where no layer has one; `kinds` are the config's layer_types."""
    if window is not None and window < 1:
        raise WeightError(f"sliding_window must be at least 1, got {window}")
    full, slides = "full_attention", "sliding_attention"
    usual = full if window is None else slides
    kinds = [usual] * layers if kinds is None else list(kinds)
    known = {full, slides} if "layer_types" in TARGETS[architecture] else {usual}
    if unknown := ", ".join(sorted({str(kind) for kind in kinds} - known)):
        raise UnsupportedError(f"{architecture} with layers of {unknown} (layer_types) is not supported")
    if len(kinds) != layers:
        raise WeightError(f"layer_types names {len(kinds)} layers of {layers}")
    if slides in kinds and window is None:
        raise WeightError(f"layer_types has {slides}, but there is no sliding_window")
    return tuple(window if kind == slides else None for kind in kinds) if slides in kinds else ()


class Layer(nn.Module):
    """Attention, then MLP, each after a norm of the residual stream."""

    def __init__(self, facts: ModelFacts, steady: bool, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden = facts.hidden
        self.attn_norm = RMSNorm(hidden, facts.eps, dtype=dtype, device=device)
        self.attn = Attention(
            hidden,
            hidden,
            facts.heads,
            facts.kv_heads,
            facts.head_dim,
            qkv_bias=facts.attention_bias or facts.family.qkv_bias,
            o_bias=facts.attention_bias,
            qk_norm=facts.eps if facts.family.qk_norm else None,
            steady=steady,
            dtype=dtype,
            device=device,
        )
        self.mlp_norm = RMSNorm(hidden, facts.eps, dtype=dtype, device=device)
        self.mlp = MLP(hidden, facts.intermediate, bias=facts.mlp_bias, steady=steady, dtype=dtype, device=device)

    def forward(self, hidden: Tensor, residual: Tensor | None, rotation: Rotation, core: Core) -> tuple[Tensor, Tensor]:
        """hidden [T, H] and what it is still to be added to -> the same two of this layer's output."""
        hidden, residual = self.attn_norm(hidden, residual)
        hidden, residual = self.mlp_norm(self.attn(hidden, rotation, core), residual)
        return self.mlp(hidden), residual


class Decoder(nn.Module):
    """The target. Parameters are made empty; `models.weights` fills them."""

    def __init__(
        self,
        facts: ModelFacts,
        *,
        max_positions: int,
        max_seq_len: int,
        steady: bool = False,
        dtype: torch.dtype,
        device: torch.device,
        tp: TP | None = None,
    ) -> None:
        """max_positions sizes the rope tables, max_seq_len fixes length-dependent frequencies.

        `steady`: a row's bits do not depend on the other rows of a forward, nor on how a prompt is cut into chunks.
        """
        super().__init__()
        if tp is not None and tp.size > 1:
            raise UnsupportedError("tensor parallel decoders are not supported")
        self.facts = facts
        self.steady = steady
        self.embed = Embedding(facts.vocab, facts.hidden, steady=steady, dtype=dtype, device=device)
        self.layers = nn.ModuleList(Layer(facts, steady, dtype, device) for _ in range(facts.layers))
        self.norm = RMSNorm(facts.hidden, facts.eps, dtype=dtype, device=device)
        self.lm_head = None
        if not facts.tied:
            self.lm_head = Linear(facts.hidden, facts.vocab, steady=steady, dtype=dtype, device=device)
        self.rope = Rope(
            facts.head_dim,
            facts.rope,
            max_positions=max_positions,
            max_seq_len=max_seq_len,
            dtype=dtype,
            device=device,
        )

    @property
    def kv_layout(self) -> KVLayout:
        """What a pool must offer; our layers are its first."""
        return KVLayout(self.facts.layers, self.facts.kv_heads, self.facts.head_dim)

    def forward(
        self, ids: Tensor, positions: Tensor, kv: KVPool, meta: AttnMeta, on_layer: OnLayer | None = None
    ) -> Tensor:
        """ids, positions [T] i64 -> [T, H] after the final norm.

        `on_layer(i, hidden, residual)` is called after layer i, whose output is hidden + residual, and at
        last as `on_layer(-1, normed, None)`.
        """
        rotation = self.rope(positions)
        scale, windows = self.facts.head_dim**-0.5, self.facts.windows
        hidden: Tensor = self.embed(ids)
        residual: Tensor | None = None
        for i, layer in enumerate(self.layers):
            # what has left a window is not read again, but its pages are kept: all layers share one page table
            core = PagedCore(kv.layer(i), meta, scale, windows[i] if windows else None, self.steady)
            hidden, residual = layer(hidden, residual, rotation, core)
            if on_layer is not None:
                on_layer(i, hidden, residual)
        normed: Tensor = self.norm(hidden, residual)[0]
        if on_layer is not None:
            on_layer(-1, normed, None)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, H] after the final norm -> [R, V]."""
        out: Tensor = self.embed.logits(hidden) if self.lm_head is None else self.lm_head(hidden)
        return out
