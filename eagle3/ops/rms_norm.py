"""Root-mean-square norm, with the sum into the residual stream that comes before it."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm_torch(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x [T, H], weight [H] -> (norm of the sum, the sum itself x + residual), both [T, H] as x.

    The statistics are float32 at least; the result is cast back before it meets the weight.
    """
    total = x if residual is None else x + residual
    dtype = torch.promote_types(x.dtype, torch.float32)
    if dtype == x.dtype == weight.dtype:
        return F.rms_norm(total, weight.shape, weight, eps), total
    return F.rms_norm(total.to(dtype), weight.shape, None, eps).to(x.dtype) * weight, total


rms_norm = rms_norm_torch
