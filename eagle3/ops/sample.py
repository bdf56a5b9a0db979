"""Draw tokens from filtered logits: each a function of its row's logits, parameters, seed and index alone."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped
from eagle3.ops.filters import cut, temper
from eagle3.ops.philox import Stream, noise, uniforms
from eagle3.ops.select import CHUNK, argmax_torch, argmax_triton, best_index, key_of, ordered, unordered


def sample_torch(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    *,
    stream: Stream = Stream.TARGET,
    greedy: bool = False,
    filtered: bool = True,
) -> Tensor:
    """Tokens [R] i64 for logits [R, V]; parameters [R] as in `filter_logits`, seed and index [R] i64.

    What the host knows saves work: `greedy` says that all rows have temperature 0, `filtered=False` that no
    row has a filter.
    """
    if greedy:
        return argmax_torch(logits)
    kept = temper(logits, temperature)
    if filtered:
        kept = cut(kept, top_k, top_p, min_p)
    race = noise(seed, index, stream, logits.shape[-1]).log_().neg_().log_()  # minus a Gumbel variate
    return argmax_torch(kept - race)


def sample_triton(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    *,
    stream: Stream = Stream.TARGET,
    greedy: bool = False,
    filtered: bool = True,
) -> Tensor:
    """As `sample_torch`, without a sort: the lowest logit that stays is found digit by digit of its bits.

    A digit costs a launch over all chunks, so that a short batch still fills the GPU; rows without the filter,
    and chunks without a candidate, skip it. Probabilities are summed as integers: no order of sums matters.
    """
    if greedy:
        return argmax_triton(logits)
    (rows, size), device = logits.shape, logits.device
    assert logits.stride(1) == 1
    # the kernels step through a row's parameters one by one; an expanded scalar has nothing to step through
    temperature, top_k, top_p, min_p, seed, index = (
        t.contiguous() for t in (temperature, top_k, top_p, min_p, seed, index)
    )
    splits, levels = triton.cdiv(size, CHUNK), _LEVELS[logits.dtype]
    keys = torch.empty(rows, splits, dtype=torch.int64, device=device)
    peaks = torch.empty(rows, splits, device=device)
    bins = torch.empty(2, rows, levels, splits, 16, dtype=torch.int64, device=device)
    state = torch.empty(2, rows, levels, 2, dtype=torch.int64, device=device)
    row = (logits, temperature, top_k, top_p)
    sizes = {"LEVELS": levels, "SPLITS": triton.next_power_of_2(splits), "CHUNK": CHUNK}
    for by_mass in (False, True) if filtered else ():
        for level in range(levels):
            _digit_kernel[(rows, splits)](
                *row,
                peaks,
                bins,
                state,
                logits.stride(0),
                size,
                level,
                BY_MASS=by_mass,
                **sizes,
                **overlapped(logits),
            )
    _race_kernel[(rows, splits)](
        *row,
        min_p,
        seed,
        index,
        peaks,
        bins,
        state,
        keys,
        logits.stride(0),
        size,
        stream,
        FILTERED=filtered,
        **sizes,
        **overlapped(logits),
    )
    return best_index(keys)


_LEVELS = {torch.bfloat16: 4, torch.float16: 5, torch.float32: 8}  # hexadecimal digits that tell float32 forms apart


@triton.jit  # type: ignore[untyped-decorator]
def _descend(  # type: ignore[no-untyped-def]
    bins, state, need, share, level, splits, BY_MASS: tl.constexpr, SPLITS: tl.constexpr
):
    """The first `level` >= 1 digits of the lowest value that stays, and how much is needed from there upward.

    bins [LEVELS, splits, 16] hold what each chunk has by the next digit, state [LEVELS, 2] this, a level before.
    """
    last = level - 1
    split, digit = tl.arange(0, SPLITS)[:, None], tl.arange(0, 16)
    part = tl.load(bins + (last * splits + split) * 16 + digit[None, :], mask=split < splits, other=0)
    found = tl.sum(part, 0)  # [16]
    prefix = tl.zeros([], tl.int64)
    if last > 0:
        prefix, need = tl.load(state + last * 2), tl.load(state + last * 2 + 1)
    elif BY_MASS:
        wanted = share.to(tl.float64) * tl.sum(found, 0).to(tl.float64)
        need = wanted.to(tl.int64)
        need = tl.maximum(need + (need.to(tl.float64) < wanted).to(tl.int64), 1)
    upward = tl.sum(tl.where(digit[None, :] >= digit[:, None], found[None, :], 0), 1)  # [16]
    pick = tl.max(tl.where(upward >= need, digit, 0), 0)
    return prefix * 16 + pick, need - tl.sum(tl.where(digit > pick, found, 0), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _lowest(  # type: ignore[no-untyped-def]
    bins, state, temperature, splits, LEVELS: tl.constexpr, SPLITS: tl.constexpr
):
    """The lowest tempered logit that stays, float32, once all digits are counted; LEVELS > 1."""
    prefix, _ = _descend(bins, state, tl.zeros([], tl.int64), temperature, LEVELS, splits, False, SPLITS)
    bits = ((prefix << (32 - 4 * LEVELS)) - 0x80000000).to(tl.int32)
    bits = tl.where(bits < 0, bits | ((1 << (32 - 4 * LEVELS)) - 1), bits)
    return tl.div_rn(unordered(bits), temperature)


@triton.jit(do_not_specialize=["level"])  # type: ignore[untyped-decorator]
def _digit_kernel(  # type: ignore[no-untyped-def]
    logits,
    temperature,
    top_k,
    top_p,
    peaks,
    bins,
    state,
    stride,
    size,
    level,
    BY_MASS: tl.constexpr,
    LEVELS: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One more digit: counts, or masses, of the chunk's values that agree with all digits before, by this one."""
    follow(OVERLAP)
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    splits, other = tl.num_programs(1), tl.num_programs(0) * LEVELS
    warmth = tl.load(temperature + row)
    k, share = tl.load(top_k + row), tl.load(top_p + row)
    first_bins, first_state = bins + row * LEVELS * splits * 16, state + row * LEVELS * 2
    if BY_MASS:
        on = share < 1
        bins, state = first_bins + other.to(tl.int64) * splits * 16, first_state + other * 2
    else:
        on = k > 0
        bins, state = first_bins, first_state
    peaking = (level == 0) & (not BY_MASS)
    if (warmth > 0) & (on | peaking):
        index = split * CHUNK + tl.arange(0, CHUNK)
        value = tl.load(logits + row * stride + index, mask=index < size, other=float("-inf")).to(tl.float32)
        value = tl.where(value == value, value, float("-inf"))
        tempered = tl.div_rn(value, warmth)
        if peaking:
            tl.store(peaks + row * splits + split, tl.max(tempered, 0))
        if on:
            prefix, need = tl.zeros([], tl.int64), tl.minimum(k, size).to(tl.int64)
            if level > 0:
                prefix, need = _descend(bins, state, need, share, level, splits, BY_MASS, SPLITS)
                if split == 0:
                    tl.store(state + level * 2, prefix)
                    tl.store(state + level * 2 + 1, need)
            digits = (ordered(value).to(tl.uint32, bitcast=True) ^ 0x80000000) >> (28 - 4 * level).to(tl.uint32)
            there = (index < size) & ((digits >> 4) == prefix.to(tl.uint32))
            weight = there.to(tl.int32)
            if BY_MASS:
                part = tl.arange(0, SPLITS)
                peak = tl.max(tl.load(peaks + row * splits + part, mask=part < splits, other=float("-inf")), 0)
                share_of = tl.where(tempered == peak, 1.0, tl.exp(tempered - peak))  # infinite peaks too
                if k > 0:
                    there &= tempered >= _lowest(first_bins, first_state, warmth, splits, LEVELS, SPLITS)
                weight = tl.where(there, (share_of * 1099511627776.0).to(tl.int64), 0)  # in 2^-40 of the peak's
            into = bins + (level * splits + split) * 16
            if tl.max(there.to(tl.int32), 0) > 0:
                for digit in tl.static_range(16):
                    mine = tl.where((digits & 15) == digit, weight, 0)
                    tl.store(into + digit, tl.sum(mine, 0).to(tl.int64))
            else:
                tl.store(into + tl.arange(0, 16), tl.zeros([16], tl.int64))


@triton.jit(do_not_specialize=["stream"])  # type: ignore[untyped-decorator]
def _race_kernel(  # type: ignore[no-untyped-def]
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    index,
    peaks,
    bins,
    state,
    keys,
    stride,
    size,
    stream,
    FILTERED: tl.constexpr,
    LEVELS: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The best key of a chunk: of the logits where greedy, else of what stays of them, in the Gumbel race."""
    follow(OVERLAP)
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    splits = tl.num_programs(1)
    group = split * (CHUNK // 4) + tl.arange(0, CHUNK // 4)
    ids = group[:, None] * 4 + tl.arange(0, 4)[None, :]  # [n, 4], a counter's four
    value = tl.load(logits + row * stride + ids, mask=ids < size, other=float("-inf")).to(tl.float32)
    warmth = tl.load(temperature + row)
    if warmth > 0:
        value = tl.div_rn(tl.where(value == value, value, float("-inf")), warmth)
        lowest = tl.full([], float("-inf"), tl.float32)
        if FILTERED:
            bins, state = bins + row * LEVELS * splits * 16, state + row * LEVELS * 2
            other = (tl.num_programs(0) * LEVELS).to(tl.int64)
            if tl.load(top_k + row) > 0:
                lowest = _lowest(bins, state, warmth, splits, LEVELS, SPLITS)
            if tl.load(top_p + row) < 1:
                mass = _lowest(bins + other * splits * 16, state + other * 2, warmth, splits, LEVELS, SPLITS)
                lowest = tl.maximum(lowest, mass)
            floor = tl.load(min_p + row)
            if floor > 0:
                part = tl.arange(0, SPLITS)
                peak = tl.max(tl.load(peaks + row * splits + part, mask=part < splits, other=float("-inf")), 0)
                lowest = tl.maximum(lowest, peak + tl.log(floor))
        stays = value >= lowest
        value = tl.where(stays, value, float("-inf"))
        if tl.max(tl.max(stays.to(tl.int32), 1), 0) > 0:
            noise = uniforms(tl.load(seed + row), tl.load(index + row), stream, group)
            value -= tl.log(-tl.log(noise))
    tl.store(keys + row * splits + split, tl.max(tl.max(key_of(value, ids), 1), 0))


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    *,
    stream: Stream = Stream.TARGET,
    greedy: bool = False,
    filtered: bool = True,
) -> Tensor:
    """As `sample_torch`, by kernels on a GPU."""
    draw = sample_triton if by_kernel(logits) else sample_torch
    row = (logits, temperature, top_k, top_p, min_p, seed, index)
    return draw(*row, stream=stream, greedy=greedy, filtered=filtered)
