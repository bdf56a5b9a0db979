"""A head as a folder that this engine and others read: config.json and model.safetensors."""

from pathlib import Path
from typing import Any

import torch

from eagle3.config.shape import default_capture
from eagle3.models.eagle import EagleHead, head_names
from eagle3.models.head_config import CONVENTION, LAYER_IDS
from eagle3.models.head_dialects import sizes
from eagle3.models.head_facts import HeadFacts
from eagle3.models.head_write import t2d_of, write_head
from eagle3.models.weights import plan


def head_config(facts: HeadFacts, layers: tuple[int, ...], target_layers: int, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of a head that reads the outputs of `layers`.

    All engines agree on the default layers, but not on whether a list means inputs or outputs: so a list is
    written for other layers alone, and says which.
    """
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **sizes(facts),
        "target_hidden_size": facts.target_hidden,
        "draft_vocab_size": facts.draft_vocab,
        "rms_norm_eps": float(f"{facts.eps:.6g}"),  # without what a float32 in the target's file added to it
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
        tensors["t2d"] = t2d_of(head.d2t, head.facts.vocab)
    write_head(folder, tensors, head_config(head.facts, layers, head.lender.layers, head.dtype))
