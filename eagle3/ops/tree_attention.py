"""Attention of trees of guesses: all of the prefix, and a masked tail."""

import torch
from torch import Tensor

from eagle3.ops.paged import attend, read_kv


def tree_attention_torch(
    q: Tensor,
    kv: Tensor,
    kv_lens: Tensor,
    table: Tensor,
    tail: int,
    depth: Tensor,
    mask: Tensor | None,
    scale: float,
    window: int | None,
    n_kv: int,
) -> Tensor:
    """q [G · Q, n_h, hd] over kv [pages, page, E] by kv_lens [G], table [G, M] -> as q.

    Entries before the last `tail` are seen by every row; column c of the tail by row i iff bit c of mask
    [G, Q, W] i32 is set or, without a mask, iff c <= tail - Q + i. Column c is at position kv_len - tail +
    depth[c], depth [G, tail]; row i is column tail - Q + i. A `window` hides all that is that many positions
    behind, or more.
    """
    (G, M), page = table.shape, kv.shape[1]
    Q = q.shape[0] // G
    k, v = read_kv(kv, kv_lens, table, n_kv, q.dtype)
    base = kv_lens.long()[:, None] - tail  # [G, 1] first entry of the tail
    entry = torch.arange(M * page, device=q.device)
    column = entry - base  # [G, S], negative in the prefix
    if mask is None:
        last = torch.arange(tail - Q, tail, device=q.device)  # [Q] the column of each row
        visible = column[:, None] <= last[:, None]  # [G, Q, S]
    else:
        word = (column // 32).clamp(0, mask.shape[2] - 1)[:, None].expand(G, Q, -1)
        bit = (mask.gather(2, word) >> (column % 32).to(torch.int32)[:, None]) & 1
        visible = (column < 0)[:, None] | (bit.bool() & (column < tail)[:, None])
    if window is not None:
        in_tail = base + depth.long().gather(1, column.clamp(0, tail - 1))
        k_pos = torch.where(column < 0, entry, in_tail)  # [G, S]
        q_pos = base + depth[:, tail - Q :]  # [G, Q]
        visible = visible & (q_pos[:, :, None] - k_pos[:, None] < window)
    return attend(q.view(G, Q, *q.shape[1:]), k, v, visible, kv_lens == 0, scale).flatten(0, 1)


tree_attention = tree_attention_torch
