"""Selection by unique integer keys: of equal values the lower index, on any device and by any algorithm."""

# ruff: noqa: ANN001, ANN201, ANN202 (a kernel's arguments have no Python types)

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped

_LOW = 0xFFFFFFFF
CHUNK = 4096  # values of a row that one program reads; fixed, so that a row's sums do not depend on its batch


def order_key(values: Tensor) -> Tensor:
    """int64 keys of values [..., n], all distinct in a row: the larger value first, then the lower index.

    Values are compared in float32; NaN counts as -inf, -0.0 as +0.0.
    """
    bits = _comparable(values).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (ordered << 32) + (_LOW - torch.arange(values.shape[-1], device=values.device))


def argmax_torch(values: Tensor) -> Tensor:
    """i64 [...], the index of the largest key over the last axis: the lowest index among equals."""
    return _comparable(values).argmax(-1)  # the first of several maxima, as torch promises


def topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest keys over the last axis, descending: values float32 [..., k], indices i64 [..., k]."""
    keys = order_key(values).topk(k, dim=-1).values
    indices = _LOW - (keys & _LOW)
    return _comparable(values).gather(-1, indices), indices


def _comparable(values: Tensor) -> Tensor:
    """float32, without NaN and without -0.0."""
    return values.float().nan_to_num(-torch.inf, torch.inf, -torch.inf) + 0.0  # -0.0 + 0.0 is +0.0


def argmax_triton(values: Tensor) -> Tensor:
    """As `argmax_torch`: the best of each chunk, then of each row."""
    rows = values.reshape(-1, values.shape[-1])
    assert rows.stride(1) == 1
    splits = triton.cdiv(rows.shape[1], CHUNK)
    keys = torch.empty(rows.shape[0], splits, dtype=torch.int64, device=values.device)
    _chunk_best_kernel[(rows.shape[0], splits)](
        rows, keys, rows.stride(0), rows.shape[1], CHUNK=CHUNK, BLOCK=1024, **overlapped(keys)
    )
    return best_index(keys).view(values.shape[:-1])


def best_index(keys: Tensor) -> Tensor:
    """i64 [R], the index in the largest of each row's keys [R, n]."""
    out = torch.empty(keys.shape[0], dtype=torch.int64, device=keys.device)
    block = triton.next_power_of_2(keys.shape[1])
    _best_index_kernel[(keys.shape[0],)](keys, out, keys.shape[1], BLOCK=block, num_warps=1, **overlapped(keys))
    return out


@triton.jit
def ordered(values):  # type: ignore[no-untyped-def]
    """int32 that order as float32 `values` do; NaN as -inf, -0.0 as +0.0."""
    bits = values.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    bits = tl.where(size > 0x7F800000, -8388608, bits)  # NaN: the bits of -inf
    bits = tl.where(size == 0, 0, bits)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def unordered(bits):  # type: ignore[no-untyped-def]
    """The float32 that `ordered` made these int32 of."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def key_of(values, index):  # type: ignore[no-untyped-def]
    """The int64 keys of `order_key` for float32 values at these indices."""
    return (ordered(values).to(tl.int64) << 32) + (0xFFFFFFFF - index.to(tl.int64))


@triton.jit
def index_of(key):  # type: ignore[no-untyped-def]
    """The index in a key, int64."""
    return 0xFFFFFFFF - (key & 0xFFFFFFFF)


@triton.jit
def value_of(key):  # type: ignore[no-untyped-def]
    """The value in a key, float32."""
    return unordered((key >> 32).to(tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def _chunk_best_kernel(  # type: ignore[no-untyped-def]
    values,
    keys,
    stride,
    size,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index = split * CHUNK + tl.arange(0, BLOCK)
    best, at = tl.full([BLOCK], float("-inf"), tl.float32), index
    for _ in range(0, CHUNK, BLOCK):
        value = tl.load(values + row * stride + index, mask=index < size, other=float("-inf")).to(tl.float32)
        better = value > best  # never of NaN, nor of an equal: the lowest index stays
        best, at = tl.where(better, value, best), tl.where(better, index, at)
        index += BLOCK
    tl.store(keys + row * tl.num_programs(1) + split, tl.max(key_of(best, at), 0))


@triton.jit  # type: ignore[untyped-decorator]
def _best_index_kernel(keys, out, size, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    follow(OVERLAP)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    found = tl.load(keys + row * size + column, mask=column < size, other=-0x8000000000000000)
    tl.store(out + row, index_of(tl.max(found, 0)))


def argmax(values: Tensor) -> Tensor:
    """As `argmax_torch`, by kernels on a GPU."""
    return (argmax_triton if by_kernel(values) else argmax_torch)(values)
