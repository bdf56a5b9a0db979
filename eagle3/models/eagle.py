"""The EAGLE-3 head: features and the next tokens in, guesses and the next features out."""

from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor, nn

from eagle3.kv.pool import KVLayout
from eagle3.models.families import Names
from eagle3.models.head_facts import HeadFacts, Lender
from eagle3.nn.attention import Attention, Core
from eagle3.nn.embedding import Embedding
from eagle3.nn.linear import Linear
from eagle3.nn.mlp import MLP
from eagle3.nn.norm import RMSNorm
from eagle3.nn.rope import Rope, Rotation
from eagle3.ops.gather import gather
from eagle3.ops.pair_norm import pair_norm


def head_names(layer: str = "midlayer") -> Names:
    """Our modules -> the public names, for `models.weights.plan`: to load a head, or to export one.

    `layer` is how the files call layer i: "midlayer" (official; one layer) or "layers.{i}". The norm of the
    residual stream is hidden_norm in every layer. t2d is not kept: it is the set of arange(Vd) + d2t.
    """
    return {
        "input_norm": ("input_norm",),
        "fc_norm.{i}": ("fc_norm.{i}",),
        "fc": ("fc",),
        "eh_norm": ("enorm",),
        "eh_proj": ("eh_proj",),
        "layers.{i}.embed_norm": (f"{layer}.input_layernorm",),
        "layers.{i}.attn_norm": (f"{layer}.hidden_norm",),
        "layers.{i}.attn.qkv": tuple(f"{layer}.self_attn.{part}_proj" for part in "qkv"),
        "layers.{i}.attn.q_norm": (f"{layer}.self_attn.q_norm",),
        "layers.{i}.attn.k_norm": (f"{layer}.self_attn.k_norm",),
        "layers.{i}.attn.o": (f"{layer}.self_attn.o_proj",),
        "layers.{i}.mlp_norm": (f"{layer}.post_attention_layernorm",),
        "layers.{i}.mlp.gate_up": (f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"),
        "layers.{i}.mlp.down": (f"{layer}.mlp.down_proj",),
        "norm": ("norm",),
        "lm_head": ("lm_head",),
        "embed": ("embed_tokens",),
        "d2t": ("d2t",),
    }


class DraftLayer(nn.Module):
    """A decoder layer that reads [norm(embedding), norm(feature)] side by side, 2H wide, or an ordinary one.

    The residual is the feature: the embedding never enters it.
    """

    def __init__(self, facts: HeadFacts, *, pairs: bool, first: bool, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden = facts.hidden
        self.norm_before_residual = facts.norm_before_residual and first
        self.normed_twice = facts.normed_twice and first
        self.embed_norm = RMSNorm(hidden, facts.eps, dtype=dtype, device=device) if pairs else None
        self.attn_norm = RMSNorm(hidden, facts.eps, dtype=dtype, device=device)
        self.attn = Attention(
            2 * hidden if pairs else hidden,
            hidden,
            facts.heads,
            facts.kv_heads,
            facts.head_dim,
            qkv_bias=facts.qkv_bias,
            o_bias=facts.o_bias,
            qk_norm=facts.eps if facts.qk_norm else None,
            dtype=dtype,
            device=device,
        )
        self.mlp_norm = RMSNorm(hidden, facts.eps, dtype=dtype, device=device)
        self.mlp = MLP(hidden, facts.intermediate, bias=facts.mlp_bias, dtype=dtype, device=device)

    def forward(
        self, ids: Tensor, embed: Tensor, hidden: Tensor, residual: Tensor | None, rotation: Rotation, core: Core
    ) -> tuple[Tensor, Tensor]:
        """ids [T], embed [V, H], hidden, residual [T, H] -> hidden and residual, whose sum is this layer's output.

        Only a layer that pairs reads ids and embed; the head's first layer has no residual yet.
        """
        if self.embed_norm is None:
            normed, residual = self.attn_norm(hidden, residual)
        else:
            residual = hidden if residual is None else hidden + residual
            normed = self._pair(ids, embed, residual)
        if self.norm_before_residual:
            residual = normed[:, -hidden.shape[1] :]
        hidden, residual = self.mlp_norm(self.attn(normed, rotation, core), residual)
        return self.mlp(hidden), residual

    def _pair(self, ids: Tensor, embed: Tensor, feature: Tensor) -> Tensor:
        assert self.embed_norm is not None
        if self.normed_twice:
            feature = self.embed_norm(feature)[0]
        return pair_norm(ids, embed, feature, self.embed_norm.weight, self.attn_norm.weight, self.attn_norm.eps)


class _On(TypedDict):
    """Where a module is made, and in which type."""

    dtype: torch.dtype
    device: torch.device


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
        assert facts.fc or facts.hidden == facts.captured * facts.target_hidden
        self.facts, self.dtype = facts, dtype
        self.lender = lender
        H = facts.hidden
        on: _On = {"dtype": dtype, "device": device}
        width = facts.captured * facts.target_hidden
        self.input_norm = RMSNorm(width, facts.eps, **on) if facts.norm_before_fc else None
        self.fc_norm = nn.ModuleList(
            RMSNorm(facts.target_hidden, facts.eps, **on) for _ in range(facts.captured * facts.fc_norm)
        )
        self.fc = Linear(width, H, bias=facts.fc_bias, **on) if facts.fc else nn.Identity()
        self.eh_norm = RMSNorm(H, facts.eps, **on) if facts.eh_proj else None
        self.eh_proj = Linear(2 * H, H, bias=facts.eh_proj_bias, **on) if facts.eh_proj else None
        pairs = [not facts.eh_proj and (i == 0 or facts.all_layers_pair) for i in range(facts.layers)]
        self.layers = nn.ModuleList(DraftLayer(facts, pairs=p, first=i == 0, **on) for i, p in enumerate(pairs))
        self.norm = RMSNorm(H, facts.eps, **on)
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
        captured = captured.to(self.dtype)
        if self.input_norm is not None:
            captured = self.input_norm(captured)[0]
        if self.fc_norm:
            parts = torch.split(captured, self.facts.target_hidden, dim=1)
            captured = torch.cat([norm(part)[0] for norm, part in zip(self.fc_norm, parts, strict=True)], dim=1)
        out: Tensor = self.fc(captured)
        return out

    def forward(
        self, ids: Tensor, features: Tensor, positions: Tensor, cores: Callable[[int], Core]
    ) -> tuple[Tensor, Tensor]:
        """Target ids [T], features [T, H], positions [T] -> (normed outputs, feedback) [T, H]."""
        embed = (self.lender.embed if self.embed is None else self.embed).weight
        rotation = self.rope(positions)
        hidden, residual = self._project(ids, embed, features), None
        for i, layer in enumerate(self.layers):
            hidden, residual = layer(ids, embed, hidden, residual, rotation, cores(i))
        out, feedback = self.norm(hidden, residual)
        return out, out if self.facts.norm_output else feedback

    def _project(self, ids: Tensor, embed: Tensor, features: Tensor) -> Tensor:
        """What the first layer reads [T, H]: the features, or a projection of [norm(embedding), feature]."""
        if self.eh_proj is None:
            return features
        assert self.eh_norm is not None
        embedded = self.eh_norm(gather(embed, ids).to(features.dtype))[0]
        out: Tensor = self.eh_proj(torch.cat([embedded, features], dim=1))
        return out

    def logits(self, out: Tensor) -> Tensor:
        """Normed outputs [R, H] -> [R, Vd]."""
        logits: Tensor = self.lender.logits(out) if self.lm_head is None else self.lm_head(out)
        return logits

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids i64 of any shape -> target ids."""
        return ids if self.d2t is None else ids + self.d2t[ids]
