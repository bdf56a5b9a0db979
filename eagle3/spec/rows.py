"""What the head reads first after a target pass: row t pairs the feature of token t with token t + 1."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.kv.meta import AttnMeta, TreeMeta
from eagle3.ops.path_rows import PathRows
from eagle3.spec.batch import Contexts, Generations, Sampling
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


def path_rows(batch: Generations, state: SlotState, tokens: Tensor, path: PathRows) -> Rows:
    """The rows of each accepted path [G, P]: root, accepted nodes; past the end, rows that are overwritten later."""
    table = batch.tables[-1]
    meta = TreeMeta(path.write_at, path.kv_lens, table, tail=tokens.shape[1], depth=path.depth, mask=None)
    return Rows(
        tokens.flatten(),
        path.captured,
        path.positions,
        meta,
        last=path.last,
        length=path.length,
        root=path.root,
        table=table,
        slots=batch.slots,
        sampling=state.sampling,
    )
