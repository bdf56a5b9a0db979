"""Tiny random EAGLE-3 heads as public files, and targets that lend to them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3.config.schema import DraftConfig
from eagle3.models.eagle import EagleHead, Lender
from eagle3.models.heads import HeadReport, load_head
from eagle3.nn.embedding import Embedding
from eagle3.nn.linear import Linear

V, Vd, HT, L = 40, 24, 16, 8  # target vocabulary, draft vocabulary, target width, target layers
CPU = torch.device("cpu")


def random_lender(dtype: torch.dtype = torch.float64, seed: int = 9) -> Lender:
    """A target's embedding and output head."""
    make = torch.Generator().manual_seed(seed)
    embed = Embedding(V, HT, dtype=dtype, device=CPU)
    lm_head = Linear(HT, V, dtype=dtype, device=CPU)
    with torch.no_grad():
        for weight in (embed.weight, lm_head.weight):
            weight.copy_(torch.randn(weight.shape, generator=make, dtype=torch.float64))
    return Lender(HT, V, L, embed.requires_grad_(False), lm_head.requires_grad_(False))


def unsorted_map(seed: int = 3) -> tuple[Tensor, Tensor]:
    """d2t [Vd] of distinct target ids in no order, and its t2d [V]."""
    ids = torch.randperm(V, generator=torch.Generator().manual_seed(seed))[:Vd]
    t2d = torch.zeros(V, dtype=torch.bool)
    t2d[ids] = True
    return ids - torch.arange(Vd), t2d


def head_tensors(
    *,
    hidden: int = HT,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 4,
    intermediate: int = 20,
    draft_vocab: int = Vd,
    captured: int = 3,
    layers: int = 1,
    fc_bias: bool = False,
    own_embedding: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> dict[str, Tensor]:
    """All tensors of a head under their public names; several layers as layers.{i}."""
    make = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=make, dtype=torch.float64) * 0.4).to(dtype)

    tensors = {"fc.weight": draw(hidden, captured * HT)}
    if fc_bias:
        tensors["fc.bias"] = draw(hidden)
    for i in range(layers):
        at = "midlayer" if layers == 1 else f"layers.{i}"
        width = hidden if i else 2 * hidden
        if i == 0:
            tensors[f"{at}.input_layernorm.weight"] = 1 + draw(hidden)
        tensors |= {
            f"{at}.hidden_norm.weight": 1 + draw(hidden),
            f"{at}.self_attn.q_proj.weight": draw(heads * head_dim, width),
            f"{at}.self_attn.k_proj.weight": draw(kv_heads * head_dim, width),
            f"{at}.self_attn.v_proj.weight": draw(kv_heads * head_dim, width),
            f"{at}.self_attn.o_proj.weight": draw(hidden, heads * head_dim),
            f"{at}.post_attention_layernorm.weight": 1 + draw(hidden),
            f"{at}.mlp.gate_proj.weight": draw(intermediate, hidden),
            f"{at}.mlp.up_proj.weight": draw(intermediate, hidden),
            f"{at}.mlp.down_proj.weight": draw(hidden, intermediate),
        }
    tensors |= {"norm.weight": 1 + draw(hidden), "lm_head.weight": draw(draft_vocab, hidden)}
    if own_embedding:
        tensors["embed_tokens.weight"] = draw(V, hidden)
    if draft_vocab < V:
        tensors["d2t"], tensors["t2d"] = unsorted_map()
    return tensors


def head_config(**overrides: object) -> dict[str, Any]:
    """A config.json for `head_tensors` as it is by default; an override of None leaves the field out."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HT,
        "intermediate_size": 20,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": V,
        "draft_vocab_size": Vd,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "float16",
    }
    return {key: value for key, value in (config | overrides).items() if value is not None}


def write_head(
    folder: Path,
    tensors: dict[str, Tensor] | None = None,
    config: dict[str, Any] | None = None,
    kind: str = "safetensors",  # safetensors | sharded | bin
) -> Path:
    """A head's folder as it is published."""
    tensors = head_tensors() if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(head_config() if config is None else config))
    if kind == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    elif kind == "safetensors":
        save_file(tensors, folder / "model.safetensors")
    else:
        names = sorted(tensors)
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, mine in shards.items():
            save_file({name: tensors[name] for name in mine}, folder / file)
        index = {"weight_map": {name: file for file, mine in shards.items() for name in mine}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def load(
    folder: Path, cfg: DraftConfig | None = None, user: list[int] | None = None, lender: Lender | None = None
) -> tuple[EagleHead, HeadReport]:
    """`load_head` on a CPU, for short sequences."""
    return load_head(
        folder,
        lender or random_lender(),
        cfg or DraftConfig(),
        user,
        max_positions=40,
        max_seq_len=32,
        device=CPU,
    )
