"""What an attention layer must know of a forward: frozen values, made new for each forward."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PromptMeta:
    """A forward over prompt chunks: C requests, ragged, T rows in all; each row sees what is before it."""

    write_at: Tensor  # [T] i64, flat entry (page id · page size + offset) that row t writes
    cu_q: Tensor  # [C + 1] i32, first row of each request
    kv_lens: Tensor  # [C] i32, entries a request may see, those it writes included
    table: Tensor  # [C, M] i32, page ids
    max_q: int  # the longest chunk; a host integer, so that shapes need no read-back


@dataclass(frozen=True)
class TreeMeta:
    """A forward over trees of guesses: G requests of Q rows each.

    All entries before the last `tail` are visible. Inside the tail row q sees column c iff bit c of its mask is
    set; without a mask the tail is causal by column. The rows of this forward are the tail's last Q columns.
    The position of column c is kv_len - tail + depth[c].
    """

    write_at: Tensor  # [G · Q] i64
    kv_lens: Tensor  # [G] i32, those written by this forward included
    table: Tensor  # [G, M] i32
    tail: int
    depth: Tensor  # [G, tail] i32
    mask: Tensor | None  # [G, Q, ceil(tail / 32)] i32, or None: causal over the tail


AttnMeta = PromptMeta | TreeMeta
