"""What tells one family of decoders from another: flags, and the names of its tensors in a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from eagle3.errors import UnsupportedError

# One of our modules -> the checkpoint's, fused in this order; "{i}" is a layer. For weight and bias alike.
Names = Mapping[str, tuple[str, ...]]

_LLAMA_NAMES: Names = {
    "embed": ("model.embed_tokens",),
    "layers.{i}.attn_norm": ("model.layers.{i}.input_layernorm",),
    "layers.{i}.attn.qkv": tuple(f"model.layers.{{i}}.self_attn.{part}_proj" for part in "qkv"),
    "layers.{i}.attn.o": ("model.layers.{i}.self_attn.o_proj",),
    "layers.{i}.mlp_norm": ("model.layers.{i}.post_attention_layernorm",),
    "layers.{i}.mlp.gate_up": ("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj"),
    "layers.{i}.mlp.down": ("model.layers.{i}.mlp.down_proj",),
    "norm": ("model.norm",),
    "lm_head": ("lm_head",),
}


_QK_NORMS: Names = {f"layers.{{i}}.attn.{x}_norm": (f"model.layers.{{i}}.self_attn.{x}_norm",) for x in "qk"}


@dataclass(frozen=True)
class Family:
    """One architecture name's flags and names; which optional facts it has is in `config.support.TARGETS`."""

    names: Names
    qkv_bias: bool = False  # biases on q, k, v whatever the config says
    qk_norm: bool = False  # each head's query and key is normed before it is turned
    # a tensor that tied embeddings make a copy -> the tensor it must equal if it is shipped all the same
    tied: Mapping[str, str] = field(default_factory=lambda: {"lm_head.weight": "model.embed_tokens.weight"})


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(names=_LLAMA_NAMES),
    "MistralForCausalLM": Family(names=_LLAMA_NAMES),
    "Qwen2ForCausalLM": Family(names=_LLAMA_NAMES, qkv_bias=True),
    "Qwen3ForCausalLM": Family(names={**_LLAMA_NAMES, **_QK_NORMS}, qk_norm=True),
}


def family(architecture: str) -> Family:
    """The family of a config.json's architecture name; UnsupportedError for one that is not known."""
    if architecture not in FAMILIES:
        known = ", ".join(FAMILIES)
        hint = "; a draft head? then it is draft.checkpoint" if "eagle" in architecture.lower() else ""
        raise UnsupportedError(f"architecture {architecture!r} is not supported; known: {known}{hint}")
    return FAMILIES[architecture]
