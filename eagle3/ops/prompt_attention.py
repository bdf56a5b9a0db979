"""Attention of prompt chunks, ragged, over all that a request has in the pool."""

import torch
from torch import Tensor

from eagle3.ops.paged import attend, read_kv


def prompt_attention_torch(
    q: Tensor,
    kv: Tensor,
    cu_q: Tensor,
    kv_lens: Tensor,
    table: Tensor,
    max_q: int,
    scale: float,
    window: int | None,
    n_kv: int,
) -> Tensor:
    """q [T, n_h, hd] over kv [pages, page, E] by cu_q [C + 1], kv_lens [C], table [C, M] -> [T, n_h, hd].

    Row i of a request of q_len rows stands at position kv_len - q_len + i and sees the positions up to its
    own, the last `window` of them if there is a window. No chunk is longer than `max_q`.
    """
    k, v = read_kv(kv, kv_lens, table, n_kv, q.dtype)
    local = torch.arange(max_q, device=q.device)
    starts, ends = cu_q[:-1].long(), cu_q[1:].long()
    rows = (starts[:, None] + local).clamp_max(q.shape[0] - 1)  # [C, max_q], shorter chunks padded
    at = (kv_lens - (ends - starts))[:, None] + local  # [C, max_q] positions
    past = at[:, :, None] - torch.arange(k.shape[2], device=q.device)  # [C, max_q, S] how far behind a row
    visible = past >= 0 if window is None else (past >= 0) & (past < window)
    out = attend(q[rows], k, v, visible, kv_lens == 0, scale)  # [C, max_q, n_h, hd]
    row = torch.arange(q.shape[0], device=q.device)
    owner = torch.searchsorted(ends, row, right=True).clamp_max(ends.shape[0] - 1)
    return out[owner, (row - starts[owner]).clamp_max(max_q - 1)]


prompt_attention = prompt_attention_torch
