"""What the attention kernels share: blocks of keys and values through a block table, the running softmax."""

# ruff: noqa: ANN001, ANN201 (a kernel's arguments have no Python types)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634  # the kernels work in powers of two
LARGE = 200 * 1024  # bytes of shared memory that a tile of 128 × 128 in three stages takes


@dataclass(frozen=True)
class Tile:
    """A program's shape: query rows, entries a block, warps, stages of loads in flight."""

    rows: int
    entries: int
    warps: int
    stages: int


def choose_tile(
    rows: int,
    head_dim: int,
    dtype: torch.dtype,
    steady: bool,
    together: int = 1,
    *,
    long: bool = False,
    full: bool = False,
) -> Tile:
    """For `rows` = Q · n_h / n_kv rows a KV head, as was fastest on an H200.

    `steady`: one tile for any number of rows; `together`: entries that are fetched at once, with memory for many of
    them; `long`: many entries; `full`: KV heads for all processors.
    """
    if dtype == torch.float32:  # no tensor cores: small tiles, registers are what is short
        return Tile(16 if rows <= 16 and not steady else 32, 16, 8 if head_dim > 128 else 4, 2)
    if head_dim > 128:
        return Tile(16, 32, 4, 3) if rows <= 16 and not steady else Tile(64, 64, 8, 2)
    if steady:
        return Tile(64, 64, 4, 4)
    if rows <= 16:
        return Tile(16, 128 if full else 64, 4, 2)
    if rows <= 64 or not long:
        return Tile(64, 64, 4, 3 if together >= 64 else 2)
    if together >= 128:
        return Tile(128, 128, 8, 3)
    return Tile(256, 64, 8, 3) if rows > 128 and together == 64 else Tile(128, 64, 4, 2)


@triton.jit  # type: ignore[untyped-decorator]
def load_block(  # type: ignore[no-untyped-def]
    kv,
    table,
    start,
    kv_len,
    key_at,
    width,
    like,
    N_KV: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHECKED: tl.constexpr,
):
    """Keys and values [BLOCK_N, BLOCK_D], in the type of `like`, of the entries from `start`, a multiple of BLOCK_N.

    `table` points at the request's page ids, `key_at` is where the head's keys begin in an entry. When CHECKED,
    entries at and past kv_len, and their page ids, are not read: they are zeros.
    """
    lane = tl.arange(0, BLOCK_N)
    dim = tl.arange(0, BLOCK_D)
    entry = start + lane
    inside = (lane[:, None] % PAGE) * width + key_at + dim[None, :]  # i32, from the first value of a page
    if PAGE % BLOCK_N == 0:  # all in one page
        page = tl.load(table + start // PAGE).to(tl.int64)
        keys = kv + (page * PAGE + start % PAGE) * width + inside
    else:
        if CHECKED:
            pages = tl.load(table + entry // PAGE, mask=entry < kv_len, other=0)
        else:
            pages = tl.load(table + entry // PAGE)
        keys = kv + (pages.to(tl.int64) * (PAGE * width))[:, None] + inside
    values = keys + N_KV * HEAD
    if CHECKED:
        valid = (entry < kv_len)[:, None] & (dim < HEAD)[None, :]
        k, v = tl.load(keys, mask=valid, other=0.0), tl.load(values, mask=valid, other=0.0)
    elif HEAD != BLOCK_D:
        valid = (lane >= 0)[:, None] & (dim < HEAD)[None, :]
        k, v = tl.load(keys, mask=valid, other=0.0), tl.load(values, mask=valid, other=0.0)
    else:
        k, v = tl.load(keys), tl.load(values)
    return k.to(like.dtype), v.to(like.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def dot_scores(q, k, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """q [BLOCK_M, BLOCK_D] · k [BLOCK_N, BLOCK_D] -> f32 [BLOCK_M, BLOCK_N], not scaled."""
    return tl.dot(q, tl.trans(k), input_precision=PRECISION)


@triton.jit  # type: ignore[untyped-decorator]
def absorb(scores, v, acc, top, total, scale, PRECISION: tl.constexpr, HIDES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Take a block's scores and values into acc [BLOCK_M, BLOCK_D], top and total [BLOCK_M]: all three, new.

    `scale` has log2(e) in it. HIDES: scores may be -inf. A block that a row sees nothing of leaves the row's
    bits alone, and one it sees all of gives the same bits with HIDES and without.
    """
    high = tl.maximum(top, tl.max(scores, 1) * scale)
    shift = high
    if HIDES:
        shift = tl.where(high == float("-inf"), 0.0, high)
    weights = tl.exp2(tl.fma(scores, scale, -shift[:, None]))
    keep = tl.exp2(top - shift)
    acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision=PRECISION)
    return acc, high, tl.fma(total, keep, tl.sum(weights, 1))  # by name: no compiler's choice
