"""Rotary tables: cosines and sines of every position, for all scalings that transformers knows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eagle3.errors import UnsupportedError, WeightError
from eagle3.ops.gather import gather

Rotation = tuple[Tensor, Tensor]  # cos, sin [T, dim / 2] of a forward's positions


@dataclass(frozen=True)
class RopeFacts:
    """What a checkpoint says of its positions, in one form however it was written."""

    theta: float
    max_position_embeddings: int
    scaling: dict[str, Any] | None = None  # rope_type and its parameters; None: plain

    @classmethod
    def of(cls, theta: float, max_position_embeddings: int, scaling: dict[str, Any] | None) -> "RopeFacts":
        """From rope_theta and rope_scaling, or from rope_parameters, which hold both."""
        given = {key: value for key, value in (scaling or {}).items() if value is not None}
        theta = given.pop("rope_theta", theta)
        if type(theta) not in (int, float) or not 0 < theta < 2**63:
            raise WeightError(f"rope_theta must be a number above 0, got {theta!r}")
        kind = given.pop("type", "default")  # the older name of rope_type
        kind = given.pop("rope_type", kind)
        if kind != "default":
            given = {"rope_type": kind, **given}
            if kind in ("llama3", "yarn", "longrope"):
                given.setdefault("original_max_position_embeddings", max_position_embeddings)
        return cls(float(theta), max_position_embeddings, given or None)


def require_known(kind: object) -> None:
    """Raise UnsupportedError for a rope_type that is not known."""
    if kind == "default":
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # here, as it takes seconds

    if kind not in tuple(ROPE_INIT_FUNCTIONS):
        known = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
        raise UnsupportedError(f"rope scaling {kind!r} is not supported; known: {known}")


def frequencies(facts: RopeFacts, dim: int, max_seq_len: int) -> tuple[Tensor, float]:
    """Inverse frequencies [dim / 2] f32 and the factor on cosines and sines, as for sequences of max_seq_len.

    Raises UnsupportedError for a scaling that is unknown, lacks a parameter or turns only a part of a head.
    """
    scaling = facts.scaling or {}
    kind = scaling.get("rope_type", "default")
    require_known(kind)
    if kind != "proportional" and scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedError("rotary embedding of a part of a head (partial_rotary_factor) is not supported")
    if kind == "default":
        return 1.0 / facts.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim), 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    try:
        config = LlamaConfig(  # only a carrier: one head of `dim`
            hidden_size=dim,
            num_attention_heads=1,
            head_dim=dim,
            max_position_embeddings=facts.max_position_embeddings,
            rope_parameters={"rope_theta": facts.theta, **scaling},
        )
        found, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=max_seq_len)
    except (KeyError, TypeError, ValueError, RuntimeError, ZeroDivisionError) as fault:
        raise UnsupportedError(f"rope scaling {scaling}: {type(fault).__name__} {fault}") from fault
    return found, float(factor)


class Rope(nn.Module):
    """cos and sin [max_positions, dim / 2], one pair a model; float32 at least.

    `max_seq_len` fixes the frequencies of scalings that depend on a sequence's length; `max_positions` may be
    larger, as a step's guesses stand beyond it.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        dim: int,
        facts: RopeFacts,
        *,
        max_positions: int,
        max_seq_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        wide = torch.promote_types(dtype, torch.float32)
        inverse, factor = frequencies(facts, dim, max_seq_len)
        angles = torch.arange(max_positions, dtype=wide)[:, None] * inverse.to(wide)
        self.register_buffer("cos", (angles.cos() * factor).to(device), persistent=False)
        self.register_buffer("sin", (angles.sin() * factor).to(device), persistent=False)

    def forward(self, positions: Tensor) -> Rotation:
        """positions [T] i64 -> their cos and sin, once a forward and shared by its layers."""
        return gather(self.cos, positions), gather(self.sin, positions)
