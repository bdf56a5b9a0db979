"""The K candidates that a draft row offers."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped
from eagle3.ops.select import index_of, key_of, ordered, topk, value_of

_CHUNK = 2048  # logits of a row that one program reads; fixed, so that a row's sum does not depend on its batch


def draft_topk_torch(logits: Tensor, k: int, d2t: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Log-probabilities float32 [R, k], largest first, and ids i64 [R, k] for draft logits [R, Vd].

    Ids are the draft's or, with d2t [Vd] i64, the target's. Equal logits: the lower draft id first. A row whose
    probabilities are undefined (a NaN, an infinite best) offers its first ids at -inf, so that they are never
    chosen over sound ones.
    """
    wide = logits.float()
    scores = wide.log_softmax(-1)
    undefined = scores.isnan()  # NaN in a whole row, or in none of it
    ids = topk(wide.masked_fill(undefined, -torch.inf), k)[1]
    best = scores.masked_fill(undefined, -torch.inf).gather(-1, ids)
    return best, ids if d2t is None else ids + d2t[ids]


def draft_topk_triton(logits: Tensor, k: int, d2t: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `draft_topk_torch`: the k best of each chunk, then of each row."""
    (rows, size), device = logits.shape, logits.device
    assert logits.stride(1) == 1
    assert k <= _CHUNK
    splits = triton.cdiv(size, _CHUNK)
    keys = torch.empty(rows, splits, k, dtype=torch.int64, device=device)
    peaks, sums = torch.empty(2, rows, splits, device=device)
    half = logits.dtype == torch.bfloat16
    _candidates_kernel[(rows, splits)](
        logits,
        keys,
        peaks,
        sums,
        logits.stride(0),
        size,
        k,
        CHUNK=_CHUNK,
        HALF=half,
        num_warps=2 if half else 4,
        **overlapped(logits),
    )
    scores = torch.empty(rows, k, device=device)
    ids = torch.empty(rows, k, dtype=torch.int64, device=device)
    _merge_kernel[(rows,)](
        keys,
        peaks,
        sums,
        ids if d2t is None else d2t,
        scores,
        ids,
        k,
        splits,
        MAPPED=d2t is not None,
        SPLITS=triton.next_power_of_2(splits),
        BLOCK=triton.next_power_of_2(splits * k),
        **overlapped(logits),
    )
    return scores, ids


@triton.jit  # type: ignore[untyped-decorator]
def _candidates_kernel(  # type: ignore[no-untyped-def]
    logits,
    keys,
    peaks,
    sums,
    stride,
    size,
    k,
    CHUNK: tl.constexpr,
    HALF: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index = split * CHUNK + tl.arange(0, CHUNK)
    value = tl.load(logits + row * stride + index, mask=index < size, other=float("-inf")).to(tl.float32)
    peak = tl.max(value, 0)
    shift = tl.where(peak == float("-inf"), 0.0, peak)  # a chunk of -inf alone adds nothing
    at = row * tl.num_programs(1) + split
    tl.store(peaks + at, peak)
    tl.store(sums + at, tl.sum(tl.exp(value - shift), 0))  # NaN if there is a NaN or +inf
    if HALF:  # a bfloat16 is the upper half of its float32: the lower one holds the place, and 32 bits are enough
        key = (ordered(value) & -65536) | (CHUNK - 1 - tl.arange(0, CHUNK))
        for j in range(k):
            best = tl.max(key, 0)
            top = (best & -65536) | tl.where(best < 0, 65535, 0)
            place = split * CHUNK + (CHUNK - 1 - (best & 65535))
            tl.store(keys + at * k + j, (top.to(tl.int64) << 32) + (0xFFFFFFFF - place.to(tl.int64)))
            key = tl.where(key == best, -0x80000000, key)
    else:
        key = key_of(value, index)
        for j in range(k):
            best = tl.max(key, 0)
            tl.store(keys + at * k + j, best)
            key = tl.where(key == best, -0x8000000000000000, key)


@triton.jit  # type: ignore[untyped-decorator]
def _merge_kernel(  # type: ignore[no-untyped-def]
    keys,
    peaks,
    sums,
    d2t,
    scores,
    ids,
    k,
    splits,
    MAPPED: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    split, column = tl.arange(0, SPLITS), tl.arange(0, BLOCK)
    part = tl.load(peaks + row * splits + split, mask=split < splits, other=float("-inf"))
    peak = tl.max(part, 0)
    weight = tl.load(sums + row * splits + split, mask=split < splits, other=0.0)
    total = tl.sum(weight * tl.exp(part - peak), 0)
    sound = total == total  # not so after a NaN, nor with an infinite peak
    key = tl.load(keys + row * splits * k + column, mask=column < splits * k, other=-0x8000000000000000)
    for j in range(k):
        best = tl.max(key, 0)
        score = (value_of(best) - peak) - tl.log(total)
        index = tl.where(sound, index_of(best), j)
        tl.store(scores + row * k + j, tl.where(sound, score, float("-inf")))
        if MAPPED:
            index += tl.load(d2t + index)
        tl.store(ids + row * k + j, index)
        key = tl.where(key == best, -0x8000000000000000, key)


def draft_topk(logits: Tensor, k: int, d2t: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `draft_topk_torch`, by kernels on a GPU."""
    return (draft_topk_triton if by_kernel(logits) else draft_topk_torch)(logits, k, d2t)
