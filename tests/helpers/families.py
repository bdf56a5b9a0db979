"""Tiny pairs in float64 whose targets are of other families than Llama."""

from typing import Any

import torch

from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from eagle3.nn.norm import RMSNorm
from helpers.pairs import facts, near_pair, random_head, random_target

# changes of a tiny Llama of four layers; the windows are shorter than prompts of the matrix and than its trees' paths
_KINDS: dict[str, dict[str, Any]] = {
    "qwen2": {"architecture": "Qwen2ForCausalLM"},
    "qwen2slides": {"architecture": "Qwen2ForCausalLM", "windows": (None, 3, None, 4)},
    "qwen3": {"architecture": "Qwen3ForCausalLM", "head_dim": 6},
    "mistral": {"architecture": "MistralForCausalLM", "windows": (3,) * 4},
    "mistral8": {"architecture": "MistralForCausalLM", "windows": (8,) * 4},
}
# a pair that accepts long runs, and one whose attention is all that counts
FAMILIES = {f"{kind}-{how}": (kind, how) for kind in _KINDS for how in ("near", "random")}
del FAMILIES["mistral8-random"]


def family_pair(name: str, kv_heads: int = 2) -> tuple[Decoder, EagleHead]:
    """The pair of that name in FAMILIES; biases, norms of heads and windows all have a say in what it says."""
    kind, how = FAMILIES[name]
    if how == "near":
        target, head = near_pair(kv_heads, noise=0.007, **_KINDS[kind])
    else:
        target = random_target(facts(16, hidden=16, layers=4, kv_heads=kv_heads, **_KINDS[kind]), seed=1, std=0.5)
        head = random_head(target, seed=2, std=0.5)
    make = torch.Generator().manual_seed(5)
    for layer in target.layers:
        for part in (layer.attn.qkv.bias, layer.attn.q_norm, layer.attn.k_norm):
            if part is not None:
                weight = part.weight if isinstance(part, RMSNorm) else part
                weight.add_(0.5 * torch.randn(weight.shape, generator=make, dtype=torch.float64))
    return target, head
