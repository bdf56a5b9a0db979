"""What the attention references share: reading entries through a block table, and attending under a mask."""

import torch
import torch.nn.functional as F
from torch import Tensor


def read_kv(kv: Tensor, kv_lens: Tensor, table: Tensor, n_kv: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values [B, n_kv, S, hd] of all S = M · page entries of table [B, M], views of one gather.

    At and past kv_lens [B] the last valid entry stands in, so that what lies there is never read.
    """
    page, width = kv.shape[1:]
    at = torch.arange(table.shape[1] * page, device=kv.device)  # [S]
    at = at.minimum((kv_lens[:, None] - 1).clamp_min(0))  # [B, S]
    rows = table.long().gather(1, at // page) * page + at % page
    found = kv.view(-1, width).index_select(0, rows.flatten()).to(dtype)
    found = found.view(*rows.shape, 2, n_kv, width // (2 * n_kv))
    k, v = found.transpose(1, 3).unbind(2)  # [B, n_kv, 2, S, hd]
    return k, v


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, empty: Tensor, scale: float) -> Tensor:
    """q [B, Q, n_h, hd] over k, v [B, n_kv, S, hd] where visible [B, Q, S]; zeros where empty [B]."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k, v, visible[:, None], scale=scale, enable_gqa=q.shape[2] != k.shape[1]
    )
    return out.transpose(1, 2).masked_fill(empty[:, None, None, None], 0.0)
