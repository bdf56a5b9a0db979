"""A head's folder: model.safetensors and config.json, each written whole."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor


def t2d_of(d2t: Tensor, vocab: int) -> Tensor:
    """d2t [Vd] -> [V] bool, whether a target's token is a draft token."""
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[d2t.long().cpu() + torch.arange(d2t.shape[0])] = True
    return t2d


def write_head(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """config.json comes last: a folder without it is no head. OSError or SafetensorError where the disk refuses."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, told = folder / "model.safetensors.part", folder / "config.json.part"
    try:
        save_file(dict(tensors), weights, metadata={"format": "pt"})
        told.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        os.replace(weights, folder / "model.safetensors")
        os.replace(told, folder / "config.json")
    finally:
        weights.unlink(missing_ok=True)
        told.unlink(missing_ok=True)
