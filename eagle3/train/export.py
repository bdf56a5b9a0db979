"""A head as a folder that this engine and others read: config.json and model.safetensors."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eagle3.config.shape import default_capture
from eagle3.models.eagle import EagleHead, HeadFacts, head_names
from eagle3.models.head_config import CONVENTION, LAYER_IDS
from eagle3.models.weights import plan


def head_config(facts: HeadFacts, layers: tuple[int, ...], target_layers: int, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of a head that reads the outputs of `layers`.

    All engines agree on the default layers, but not on whether a list means inputs or outputs: so a list is
    written for other layers alone, and says which.
    """
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": facts.hidden,
        "target_hidden_size": facts.target_hidden,
        "intermediate_size": facts.intermediate,
        "num_hidden_layers": facts.layers,
        "num_attention_heads": facts.heads,
        "num_key_value_heads": facts.kv_heads,
        "head_dim": facts.head_dim,
        "vocab_size": facts.vocab,
        "draft_vocab_size": facts.draft_vocab,
        "max_position_embeddings": facts.rope.max_position_embeddings,
        "rms_norm_eps": float(f"{facts.eps:.6g}"),  # without what a float32 in the target's file added to it
        "rope_theta": facts.rope.theta,
        "rope_scaling": facts.rope.scaling,
        "hidden_act": "silu",
        "attention_bias": facts.qkv_bias,
        "mlp_bias": facts.mlp_bias,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eagle_config": {"use_aux_hidden_state": True},
    }
    if set(layers) != set(default_capture(target_layers)):
        config["eagle_config"] |= {LAYER_IDS: list(layers), CONVENTION: "output"}
    return config


def export(head: EagleHead, layers: tuple[int, ...], folder: Path) -> None:
    """Write the head into `folder`; each file is replaced whole. OSError or SafetensorError where the disk refuses."""
    names = head_names("midlayer" if head.facts.layers == 1 else "layers.{i}")
    tensors = {name: part.into.detach().cpu().contiguous() for name, part in plan(head, names).items()}
    if head.d2t is not None:
        t2d = torch.zeros(head.facts.vocab, dtype=torch.bool)
        t2d[head.d2t.cpu() + torch.arange(head.draft_vocab)] = True
        tensors["t2d"] = t2d
    config = head_config(head.facts, layers, head.lender.layers, head.dtype)
    folder.mkdir(parents=True, exist_ok=True)
    weights, told = folder / "model.safetensors.part", folder / "config.json.part"
    try:
        save_file(tensors, weights, metadata={"format": "pt"})
        told.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        os.replace(weights, folder / "model.safetensors")
        os.replace(told, folder / "config.json")
    finally:
        weights.unlink(missing_ok=True)
        told.unlink(missing_ok=True)
