"""Selection by unique integer keys: of equal values the lower index, on any device and by any algorithm."""

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF


def order_key(values: Tensor) -> Tensor:
    """int64 keys of values [..., n], all distinct in a row: the larger value first, then the lower index.

    Values are compared in float32; NaN counts as -inf, -0.0 as +0.0.
    """
    bits = _comparable(values).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (ordered << 32) + (_LOW - torch.arange(values.shape[-1], device=values.device))


def argmax(values: Tensor) -> Tensor:
    """i64 [...], the index of the largest key over the last axis: the lowest index among equals."""
    return _comparable(values).argmax(-1)  # the first of several maxima, as torch promises


def topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest keys over the last axis, descending: values float32 [..., k], indices i64 [..., k]."""
    keys = order_key(values).topk(k, dim=-1).values
    indices = _LOW - (keys & _LOW)
    return _comparable(values).gather(-1, indices), indices


def _comparable(values: Tensor) -> Tensor:
    """float32, without NaN and without -0.0."""
    return values.float().nan_to_num(-torch.inf, torch.inf, -torch.inf) + 0.0  # -0.0 + 0.0 is +0.0
