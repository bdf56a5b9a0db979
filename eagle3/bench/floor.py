"""The least time a step can take on a device: what it must read, or what it must compute, whichever is longer."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from eagle3.models.eagle import EagleHead
from eagle3.spec.drafter import Drafter
from eagle3.spec.worker import Worker


@dataclass(frozen=True)
class Peak:
    """The best a device was seen to do."""

    bytes_s: float  # read from its memory
    flops: float  # 16-bit matrix products, dense


# Measured by this project on an H200: the output head's weights streamed at 16 rows; large bf16 matrix products.
PEAKS = {"NVIDIA H200": Peak(bytes_s=4.37e12, flops=790e12)}


@dataclass(frozen=True)
class Load:
    """What one pass must do."""

    bytes: int
    operations: int

    def ms(self, peak: Peak) -> float:
        """Its least time."""
        return 1000 * max(self.bytes / peak.bytes_s, self.operations / peak.flops)


def step_floor(worker: Worker, batch: int, context: int) -> float | None:
    """Milliseconds of a generation step of `batch` requests with `context` entries each, at best.

    None for a device that nobody measured, and for types other than those of 16 bits.
    """
    weight = worker.target.embed.weight
    if weight.device.type != "cuda" or weight.dtype.itemsize != 2:
        return None
    peak = PEAKS.get(torch.cuda.get_device_name(weight.device))
    return sum(load.ms(peak) for load in loads(worker, batch, context)) if peak else None


def loads(worker: Worker, batch: int, context: int) -> list[Load]:
    """The target's pass, then each draft step's. The embedding's few rows count as nothing."""
    target, shape = worker.target, worker.shape
    output = target.embed if target.lm_head is None else target.lm_head
    facts, rows = target.facts, batch * shape.nodes
    windows = facts.windows or (None,) * facts.layers
    seen = sum(context if window is None else min(context, window) for window in windows)  # of all layers together
    entry = target.kv_layout.width * target.embed.weight.dtype.itemsize
    found = [
        Load(
            _bytes([target.layers, target.norm, output]) + batch * seen * entry,
            2 * rows * (_products(target.layers) + _products(output)) + 4 * rows * seen * facts.heads * facts.head_dim,
        )
    ]
    drafter = worker.spec.drafter if worker.spec else None
    if isinstance(drafter, Drafter) and isinstance(drafter.head, EagleHead):
        first = _draft(drafter.head, batch, batch * shape.path, batch, context)
        fused = Load(_bytes([drafter.head.fc]), 2 * batch * shape.path * _products(drafter.head.fc))
        found.append(Load(first.bytes + fused.bytes, first.operations + fused.operations))
        again = _draft(drafter.head, batch, batch * shape.top_k, batch * shape.top_k, context)
        found += [again] * (shape.depth - 1)
    return found


def _draft(head: EagleHead, batch: int, rows: int, predicting: int, context: int) -> Load:
    """One pass of `rows` through the head, of which `predicting` ask for logits."""
    output = head.lm_head or head.lender.lm_head or head.lender.embed
    facts, entry = head.facts, head.kv_layout.layers * head.kv_layout.width * head.dtype.itemsize
    layers = nn.ModuleList(m for m in (head.eh_norm, head.eh_proj, head.layers) if m is not None)
    return Load(
        _bytes([layers, head.norm, output]) + batch * context * entry,
        2 * rows * _products(layers)
        + 2 * predicting * _products(output)
        + 4 * rows * context * facts.layers * facts.heads * facts.head_dim,
    )


def _bytes(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() * p.dtype.itemsize for module in modules for p in module.parameters())


def _products(module: nn.Module) -> int:
    """Values in the matrices that every row is multiplied with."""
    return sum(p.numel() for p in module.parameters() if p.dim() == 2)
