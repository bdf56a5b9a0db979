"""Attention with fused projections; what it attends to is the caller's: paged here, dense in a trainer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eagle3.kv.meta import AttnMeta, PromptMeta
from eagle3.nn.linear import Linear
from eagle3.nn.norm import RMSNorm
from eagle3.nn.rope import Rotation
from eagle3.ops.prompt_attention import prompt_attention
from eagle3.ops.rope import rope
from eagle3.ops.rope_store import HeadNorms, normed, rope_store
from eagle3.ops.tree_attention import tree_attention


@dataclass(frozen=True)
class PagedCore:
    """Stores this forward's keys and values in one layer of the pool, then attends over it as `meta` says.

    `steady`: a row's bits depend on what it sees alone, the same in a prompt and in a chain.
    """

    kv: Tensor  # [pages, page, E]
    meta: AttnMeta
    scale: float
    window: int | None = None
    steady: bool = False

    def attend(self, heads: Tensor, rotation: Rotation, n_kv: int, norms: HeadNorms | None) -> Tensor:
        """heads [T, n_h + 2 n_kv, hd], queries, keys, values, not yet normed and turned -> [T, n_h, hd]."""
        meta, kv = self.meta, self.kv
        q = rope_store(heads, *rotation, kv, meta.write_at, n_kv, norms)
        rule = self.scale, self.window, n_kv
        if isinstance(meta, PromptMeta):
            return prompt_attention(q, kv, meta.cu_q, meta.kv_lens, meta.table, meta.max_q, *rule, steady=self.steady)
        return tree_attention(
            q, kv, meta.kv_lens, meta.table, meta.tail, meta.depth, meta.mask, *rule, steady=self.steady
        )


DenseCore = Callable[[Tensor, Tensor, Tensor], Tensor]  # q [T, n_h, hd], k, v [T, n_kv, hd], turned -> [T, n_h, hd]
Core = PagedCore | DenseCore


class Attention(nn.Module):
    """`in_features` need not be `hidden`: a head's first layer reads embedding and feature side by side."""

    def __init__(
        self,
        in_features: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        qkv_bias: bool = False,
        o_bias: bool = False,
        qk_norm: float | None = None,
        steady: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`qk_norm`: epsilon of the norms that each head's query and key take before they are turned; None: none."""
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        q, kv = heads * head_dim, kv_heads * head_dim
        self.qkv = Linear(in_features, q, kv, kv, bias=qkv_bias, steady=steady, dtype=dtype, device=device)
        self.o = Linear(q, hidden, bias=o_bias, steady=steady, dtype=dtype, device=device)
        self.q_norm = self.k_norm = None
        if qk_norm is not None:
            self.q_norm, self.k_norm = (RMSNorm(head_dim, qk_norm, dtype=dtype, device=device) for _ in "qk")

    def forward(self, x: Tensor, rotation: Rotation, core: Core) -> Tensor:
        """x [T, in] whose positions `rotation` was made of -> [T, H]."""
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)  # [T, n_h + 2 n_kv, hd]
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        if isinstance(core, PagedCore):
            seen = core.attend(heads, rotation, self.kv_heads, norms)
        else:
            heads = heads if norms is None else normed(heads, norms, self.kv_heads)
            turn = self.heads + self.kv_heads
            qk = rope(heads[:, :turn], *rotation)
            seen = core(qk[:, : self.heads], qk[:, self.heads :], heads[:, turn:])
        out: Tensor = self.o(seen.flatten(1))
        return out
