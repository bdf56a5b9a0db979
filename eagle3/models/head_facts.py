"""The facts of an EAGLE-3 head, and what it must know of its target."""

from dataclasses import dataclass

from torch import Tensor

from eagle3.config.schema import Architecture
from eagle3.errors import WeightError
from eagle3.models.decoder import Decoder
from eagle3.models.fact_lines import differing, rope_pairs
from eagle3.nn.embedding import Embedding
from eagle3.nn.linear import Linear
from eagle3.nn.rope import RopeFacts


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
    fc: bool = True  # False: the feature is what is captured, the output of the target's final norm
    norm_before_fc: bool = False  # one norm over all C·Ht
    fc_norm: bool = False  # before fc too, one norm a captured layer
    eh_proj: bool = False  # embedding and feature are projected to H before the layers, which are ordinary then
    eh_proj_bias: bool = False
    all_layers_pair: bool = False  # all layers, not the first alone, read the embedding
    norm_before_residual: bool = False  # the first layer's residual is the feature normed
    normed_twice: bool = False  # the first layer's feature meets the embedding's norm before its own
    qk_norm: bool = False  # of each head's query and key
    norm_output: bool = False  # what is fed back is the normed output

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
        """One line for every fact in which a configuration's inline copy disagrees: its key, the copy's, ours."""
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
            **rope_pairs(
                self.rope, RopeFacts.of(inline.rope_theta, inline.max_position_embeddings, inline.rope_scaling)
            ),
        }
        return [f"  {line}" for line in differing({key: (its, ours) for key, (ours, its) in pairs.items()})]
