"""Write this forward's keys and values into their entries of one layer of the pool."""

import torch
from torch import Tensor


def store_kv_torch(k: Tensor, v: Tensor, kv: Tensor, write_at: Tensor) -> None:
    """k, v [T, n_kv, hd] into kv [pages, page, E] at the flat entries write_at [T] i64; keys come first."""
    rows = torch.cat((k.flatten(1), v.flatten(1)), dim=1)
    kv.view(-1, kv.shape[2]).index_copy_(0, write_at, rows.to(kv.dtype))


store_kv = store_kv_torch
