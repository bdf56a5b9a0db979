"""What the head reads first after a target pass: row t pairs the feature of token t with token t + 1."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.kv.meta import AttnMeta, TreeMeta, entries
from eagle3.spec.batch import Accepted, Contexts, Generations, Sampling
from eagle3.spec.slots import SlotState


@dataclass(frozen=True)
class Rows:
    """T rows of B requests. The last real row of a request predicts; others leave their K/V behind."""

    ids: Tensor  # [T] i64, the token after the row's own
    captured: Tensor  # [T, C_l · H]
    positions: Tensor  # [T] i64, of the row's own token
    meta: AttnMeta  # over the head's page table
    last: Tensor  # [B] i64, the row that predicts
    length: Tensor  # [B] i64, committed entries now: the new root's position
    root: Tensor  # [B] i64, the new root
    table: Tensor  # [B, M] i32, the head's
    slots: Tensor  # [B] i64
    sampling: Sampling  # [B]


def context_rows(batch: Contexts, token: Tensor, length: Tensor, captured: Tensor) -> Rows:
    """All rows of C prompt chunks: the real next prompt token, and `token` [C] where a prompt ends."""
    ids = batch.following.clone()
    ids[batch.predict] = torch.where(batch.last, token, ids[batch.predict])
    meta = batch.metas[-1]
    return Rows(
        ids,
        captured[: ids.shape[0]],
        batch.positions,
        meta,
        last=batch.predict,
        length=length,
        root=token,
        table=meta.table,
        slots=batch.slots,
        sampling=batch.sampling,
    )


def path_rows(
    batch: Generations, state: SlotState, accepted: Accepted, root: Tensor, page: int, captured: Tensor
) -> Rows:
    """The P rows of each accepted path: root, accepted nodes, and past the end rows that are overwritten later."""
    (G, P), N, table = accepted.tokens.shape, state.tree.tokens.shape[1], batch.tables[-1]
    step, g = torch.arange(P, device=root.device), torch.arange(G, device=root.device)
    node = torch.cat([torch.zeros_like(root)[:, None], accepted.nodes.clamp(min=0)], dim=1)  # [G, P]
    at = state.length[:, None] + step
    meta = TreeMeta(
        write_at=entries(table, at, page).flatten(),
        kv_lens=(state.length + P).int(),
        table=table,
        tail=P,
        depth=step.int().expand(G, P),
        mask=None,
    )
    return Rows(
        accepted.tokens.flatten(),
        captured[(g[:, None] * N + node).flatten()],
        at.flatten(),
        meta,
        last=g * P + (accepted.counts - 1).clamp(min=0),
        length=state.length + accepted.counts,
        root=root,
        table=table,
        slots=batch.slots,
        sampling=state.sampling,
    )
