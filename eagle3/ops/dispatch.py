"""When a kernel serves, and when the torch reference does."""

import torch
from torch import Tensor


def by_kernel(x: Tensor) -> bool:
    """Whether x is on a GPU, not float64 (kernels compute in float32), and no gradient is wanted of it."""
    return x.is_cuda and x.dtype is not torch.float64 and not torch.is_grad_enabled()
