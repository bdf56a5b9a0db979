"""The EAGLE-3 head: features and the next tokens in, guesses and the next features out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eagle3.config.schema import Architecture
from eagle3.errors import WeightError
from eagle3.kv.pool import KVLayout
from eagle3.models.decoder import Decoder
from eagle3.models.families import Names
from eagle3.nn.attention import Attention, Core
from eagle3.nn.embedding import Embedding
from eagle3.nn.linear import Linear
from eagle3.nn.mlp import MLP
from eagle3.nn.norm import RMSNorm
from eagle3.nn.rope import Rope, RopeFacts, Rotation
from eagle3.ops.pair_norm import pair_norm


def head_names(layer: str = "midlayer") -> Names:
    """Our modules -> the public names, for `models.weights.plan`: to load a head, or to export one.

    `layer` is how the files call layer i: "midlayer" (official; one layer) or "layers.{i}". The norm of the
    residual stream is hidden_norm in every layer. t2d is not kept: it is the set of arange(Vd) + d2t.
    """
    return {
        "fc": ("fc",),
        "layers.{i}.embed_norm": (f"{layer}.input_layernorm",),
        "layers.{i}.attn_norm": (f"{layer}.hidden_norm",),
        "layers.{i}.attn.qkv": tuple(f"{layer}.self_attn.{part}_proj" for part in "qkv"),
        "layers.{i}.attn.o": (f"{layer}.self_attn.o_proj",),
        "layers.{i}.mlp_norm": (f"{layer}.post_attention_layernorm",),
        "layers.{i}.mlp.gate_up": (f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"),
        "layers.{i}.mlp.down": (f"{layer}.mlp.down_proj",),
        "norm": ("norm",),
        "lm_head": ("lm_head",),
        "embed": ("embed_tokens",),
        "d2t": ("d2t",),
    }


@dataclass(frozen=True)
class Lender:
    """What a head must know of its target, and may borrow from it."""

    hidden: int  # Ht
    vocab: int  # V
    layers: int  # L
    embed: Embedding
    lm_head: Linear | None  # None: the embedding is the output head

    @classmethod
    def of(cls, target: Decoder) -> "Lender":
        """A decoder as a lender."""
        facts = target.facts
        return cls(facts.hidden, facts.vocab, facts.layers, target.embed, target.lm_head)

    def logits(self, out: Tensor) -> Tensor:
        """[R, H] -> [R, V] with the target's output head, in its type."""
        out = out.to(self.embed.weight.dtype)
        return self.embed.logits(out) if self.lm_head is None else self.lm_head(out)


@dataclass(frozen=True)
class HeadFacts:
    """All that a head's shapes and arithmetic depend on, with nothing left open."""

    hidden: int  # H
    target_hidden: int  # Ht
    captured: int  # C, target layers that fc reads
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int  # V
    draft_vocab: int  # Vd
    eps: float
    rope: RopeFacts  # its max_position_embeddings is the length the head was made for
    fc_bias: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    own_embedding: bool = False
    own_lm_head: bool = True
    mapped: bool = False  # there is a d2t that is not the identity

    @classmethod
    def from_architecture(
        cls, inline: Architecture, target: Lender, captured: int, own_embedding: bool = False
    ) -> "HeadFacts":
        """From the facts that a configuration carries, for a head over C captured layers of `target`."""
        scaling = RopeFacts.of(inline.rope_theta, inline.max_position_embeddings, inline.rope_scaling)
        draft_vocab = inline.draft_vocab_size or target.vocab
        facts = cls(
            hidden=inline.hidden_size,
            target_hidden=target.hidden,
            captured=captured,
            intermediate=inline.intermediate_size,
            layers=inline.num_hidden_layers,
            heads=inline.num_attention_heads,
            kv_heads=inline.num_key_value_heads or inline.num_attention_heads,
            head_dim=inline.head_dim or inline.hidden_size // inline.num_attention_heads,
            vocab=target.vocab,
            draft_vocab=draft_vocab,
            eps=inline.rms_norm_eps,
            rope=scaling,
            qkv_bias=inline.attention_bias,
            o_bias=inline.attention_bias,
            mlp_bias=inline.mlp_bias,
            own_embedding=own_embedding or inline.hidden_size != target.hidden,
            mapped=draft_vocab < target.vocab,
        )
        if lines := facts.differences(inline):
            raise WeightError("draft.architecture does not fit the target:\n" + "\n".join(lines))
        return facts

    def differences(self, inline: Architecture) -> list[str]:
        """One line for every fact in which a configuration's inline copy disagrees: its key, ours, its."""
        pairs = {
            "hidden_size": (self.hidden, inline.hidden_size),
            "target_hidden_size": (self.target_hidden, inline.target_hidden_size or inline.hidden_size),
            "intermediate_size": (self.intermediate, inline.intermediate_size),
            "num_hidden_layers": (self.layers, inline.num_hidden_layers),
            "num_attention_heads": (self.heads, inline.num_attention_heads),
            "num_key_value_heads": (self.kv_heads, inline.num_key_value_heads or inline.num_attention_heads),
            "head_dim": (
                self.head_dim,
                inline.head_dim or inline.hidden_size // inline.num_attention_heads,
            ),
            "vocab_size": (self.vocab, inline.vocab_size),
            "draft_vocab_size": (self.draft_vocab, inline.draft_vocab_size or inline.vocab_size),
            "rms_norm_eps": (self.eps, inline.rms_norm_eps),
            "attention_bias": (self.qkv_bias, inline.attention_bias),
            "mlp_bias": (self.mlp_bias, inline.mlp_bias),
            "rope_theta, rope_scaling": (
                self.rope,
                RopeFacts.of(inline.rope_theta, inline.max_position_embeddings, inline.rope_scaling),
            ),
        }
        return [
            f"  {key}: {ours} here, {its} in the configuration" for key, (ours, its) in pairs.items() if ours != its
        ]


class DraftLayer(nn.Module):
    """A decoder layer; the first of a head reads [norm(embedding), norm(feature)] side by side, 2H wide.

    The residual is the feature: the embedding never enters it.
    """

    def __init__(self, facts: HeadFacts, *, first: bool, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden = facts.hidden
        self.embed_norm = RMSNorm(hidden, facts.eps, dtype=dtype, device=device) if first else None
        self.attn_norm = RMSNorm(hidden, facts.eps, dtype=dtype, device=device)
        self.attn = Attention(
            2 * hidden if first else hidden,
            hidden,
            facts.heads,
            facts.kv_heads,
            facts.head_dim,
            qkv_bias=facts.qkv_bias,
            o_bias=facts.o_bias,
            dtype=dtype,
            device=device,
        )
        self.mlp_norm = RMSNorm(hidden, facts.eps, dtype=dtype, device=device)
        self.mlp = MLP(hidden, facts.intermediate, bias=facts.mlp_bias, dtype=dtype, device=device)

    def forward(
        self, ids: Tensor, embed: Tensor, hidden: Tensor, residual: Tensor | None, rotation: Rotation, core: Core
    ) -> tuple[Tensor, Tensor]:
        """ids [T], embed [V, H], hidden, residual [T, H] -> hidden and residual, whose sum is this layer's output.

        Only the first layer reads ids and embed; it has no residual yet.
        """
        if self.embed_norm is None:
            normed, residual = self.attn_norm(hidden, residual)
        else:
            assert residual is None
            normed, residual = self._pair(ids, embed, hidden), hidden
        hidden, residual = self.mlp_norm(self.attn(normed, rotation, core), residual)
        return self.mlp(hidden), residual

    def _pair(self, ids: Tensor, embed: Tensor, hidden: Tensor) -> Tensor:
        assert self.embed_norm is not None
        return pair_norm(ids, embed, hidden, self.embed_norm.weight, self.attn_norm.weight, self.attn_norm.eps)


class EagleHead(nn.Module):
    """A `DraftModel`. Parameters are made empty, `models.heads` fills them; what is borrowed is none."""

    d2t: Tensor | None  # [Vd] i64, target id - draft id; None: draft ids are target ids

    def __init__(
        self,
        facts: HeadFacts,
        lender: Lender,
        *,
        max_positions: int,
        max_seq_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """max_positions sizes the rope tables, max_seq_len fixes length-dependent frequencies."""
        super().__init__()
        assert facts.own_embedding or facts.hidden == lender.hidden
        assert facts.own_lm_head or (facts.hidden == lender.hidden and facts.draft_vocab == lender.vocab)
        self.facts, self.dtype = facts, dtype
        self.lender = lender
        H = facts.hidden
        width = facts.captured * facts.target_hidden
        self.fc = Linear(width, H, bias=facts.fc_bias, dtype=dtype, device=device)
        self.layers = nn.ModuleList(
            DraftLayer(facts, first=i == 0, dtype=dtype, device=device) for i in range(facts.layers)
        )
        self.norm = RMSNorm(H, facts.eps, dtype=dtype, device=device)
        self.lm_head = Linear(H, facts.draft_vocab, dtype=dtype, device=device) if facts.own_lm_head else None
        self.embed = Embedding(facts.vocab, H, dtype=dtype, device=device) if facts.own_embedding else None
        d2t = torch.zeros(facts.draft_vocab, dtype=torch.int64, device=device) if facts.mapped else None
        self.register_buffer("d2t", d2t)
        self.rope = Rope(
            facts.head_dim,
            facts.rope,
            max_positions=max_positions,
            max_seq_len=max_seq_len,
            dtype=dtype,
            device=device,
        )

    @property
    def hidden(self) -> int:
        """H."""
        return self.facts.hidden

    @property
    def draft_vocab(self) -> int:
        """Vd."""
        return self.facts.draft_vocab

    @property
    def kv_layout(self) -> KVLayout:
        """What a pool must offer."""
        return KVLayout(self.facts.layers, self.facts.kv_heads, self.facts.head_dim)

    @property
    def scale(self) -> float:
        """The factor on attention scores."""
        return float(self.facts.head_dim**-0.5)

    def fuse(self, captured: Tensor) -> Tensor:
        """captured [R, C·Ht] of any type -> features [R, H]."""
        out: Tensor = self.fc(captured.to(self.dtype))
        return out

    def forward(
        self, ids: Tensor, features: Tensor, positions: Tensor, cores: Callable[[int], Core]
    ) -> tuple[Tensor, Tensor]:
        """Target ids [T], features [T, H], positions [T] -> (normed outputs, feedback) [T, H]."""
        embed = (self.lender.embed if self.embed is None else self.embed).weight
        rotation = self.rope(positions)
        hidden, residual = features, None
        for i, layer in enumerate(self.layers):
            hidden, residual = layer(ids, embed, hidden, residual, rotation, cores(i))
        out, feedback = self.norm(hidden, residual)
        return out, feedback

    def logits(self, out: Tensor) -> Tensor:
        """Normed outputs [R, H] -> [R, Vd]."""
        logits: Tensor = self.lender.logits(out) if self.lm_head is None else self.lm_head(out)
        return logits

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids i64 of any shape -> target ids."""
        return ids if self.d2t is None else ids + self.d2t[ids]
