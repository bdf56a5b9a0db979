"""Projections: of few rows by a kernel through which the weights stream once, of many by the library."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

from functools import cache

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped
from eagle3.ops.streams import Stream, chosen, steady_stream
from eagle3.ops.swiglu import swiglu, swiglu_torch

FEW = 64  # rows up to which a CPU's library is faster, up to threefold, with the weights as the first operand


def linear_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, gated: bool = False, steady: bool = False
) -> Tensor:
    """x [T, in], weight [out, in] -> [T, out], or with `gated` silu of its first half times the second, [T, out / 2].

    `steady`: a row's bits do not depend on T, as each row is computed alone.
    """
    if steady:
        rows = [F.linear(row, weight, bias) for row in x.unbind(0)]
        out = torch.stack(rows) if rows else x.new_empty(0, weight.shape[0])
    elif 0 < x.shape[0] <= FEW and x.dtype.itemsize >= 4 and not x.is_cuda and not torch.is_grad_enabled():
        out = _weights_first(x, weight, bias)
    else:
        out = F.linear(x, weight, bias)
    return swiglu_torch(out) if gated else out


def linear_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stream: Stream,
    *,
    gated: bool = False,
) -> Tensor:
    """As `linear_torch`; sums are float32, in an order that `stream` alone fixes."""
    (count, depth), outs = x.shape, weight.shape[0] // (2 if gated else 1)
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    assert x.dtype == weight.dtype
    assert not gated or stream.splits == 1
    tiles, groups = triton.cdiv(outs, stream.outs), triton.cdiv(count, stream.rows)
    out = torch.empty(count, outs, dtype=x.dtype, device=x.device)
    parts, arrived = out, out
    if stream.splits > 1:
        parts = torch.empty(stream.splits, count, outs, dtype=torch.float32, device=x.device)
        arrived = _arrivals(x.device)
        assert tiles * groups <= arrived.shape[0]
    steps = triton.cdiv(triton.cdiv(depth, stream.depth), stream.splits)  # blocks of columns a program
    _linear_kernel[(tiles, stream.splits, groups)](
        x, weight, weight if bias is None else bias, out, parts, arrived, x.stride(0), count, outs, depth, steps,
        BLOCK_N=stream.outs, BLOCK_K=stream.depth, BLOCK_T=stream.rows, SPLITS=stream.splits, GATED=gated,
        HAS_BIAS=bias is not None, WHOLE=depth % (stream.depth * stream.splits) == 0, AHEAD=4 if steps >= 4 else 1,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=stream.warps, num_stages=stream.stages, **overlapped(x),
    )  # fmt: skip
    return out


@cache
def _arrivals(device: torch.device) -> Tensor:
    """How many parts of each tile are there; zeros between launches."""
    return torch.zeros(1 << 14, dtype=torch.int32, device=device)


@triton.jit
def _prefetch(at):  # type: ignore[no-untyped-def]
    """Bring the lines at these addresses into the second-level cache; nothing waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _linear_kernel(  # type: ignore[no-untyped-def]
    x, weight, bias, out, parts, arrived, x_row, count, outs, depth, steps,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr, SPLITS: tl.constexpr, GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr, WHOLE: tl.constexpr, AHEAD: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    tile, split, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n, t, k = tile * BLOCK_N + tl.arange(0, BLOCK_N), group * BLOCK_T + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K)
    low = split * steps * BLOCK_K
    row = tl.minimum(n, outs - 1).to(tl.int64) * depth  # past the last row: read again, not written
    first = weight + row[:, None] + (low + k)[None, :]
    pair = outs.to(tl.int64) * depth  # from a gate's row to its partner's
    if OVERLAP and WHOLE:
        # the weights of the first blocks are on their way before the rows are there
        LINE: tl.constexpr = min(BLOCK_K, 1024 // weight.dtype.element_ty.primitive_bitwidth)
        lines = low + tl.arange(0, AHEAD * BLOCK_K // LINE) * LINE
        _prefetch(weight + row[:, None] + lines[None, :])
        if GATED:
            _prefetch(weight + pair + row[:, None] + lines[None, :])
    follow(OVERLAP)
    # rows that are not there are not read: one line asked for many times over by all programs is a queue
    there = (t < count)[:, None]
    rows = x + (t.to(tl.int64) * x_row)[:, None] + (low + k)[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    for start in range(low, low + steps * BLOCK_K, BLOCK_K):
        if WHOLE:
            values, own = tl.load(rows, mask=there, other=0.0), tl.load(first)
        else:
            inside = (start + k < depth)[None, :]
            values = tl.load(rows, mask=there & inside, other=0.0)
            own = tl.load(first, mask=inside, other=0.0)
        values = tl.trans(values)
        acc = tl.dot(own, values, acc, input_precision=PRECISION)
        if GATED:
            partner = tl.load(first + pair) if WHOLE else tl.load(first + pair, mask=inside, other=0.0)
            up = tl.dot(partner, values, up, input_precision=PRECISION)
        first += BLOCK_K
        rows += BLOCK_K
    at = t.to(tl.int64)[None, :] * outs + n[:, None]
    real = tl.trans(there) & (n < outs)[:, None]
    last = True
    if SPLITS > 1:
        size = count.to(tl.int64) * outs
        tl.store(parts + split * size + at, acc, mask=real)
        tl.debug_barrier()
        mine = arrived + group * tl.num_programs(0) + tile
        last = tl.atomic_add(mine, 1, sem="acq_rel") == SPLITS - 1
    if last:
        if SPLITS > 1:  # the last to arrive adds all, in their order
            acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
            for i in range(SPLITS):
                acc += tl.load(parts + i * size + at, mask=real, other=0.0, cache_modifier=".cg")
            tl.store(mine, 0)
        if HAS_BIAS:
            acc += tl.load(bias + n, mask=n < outs, other=0.0).to(tl.float32)[:, None]
            if GATED:
                up += tl.load(bias + outs + n, mask=n < outs, other=0.0).to(tl.float32)[:, None]
        result = acc.to(out.dtype.element_ty)
        if GATED:  # rounded where the separate ops round
            wide = result.to(tl.float32)
            gate = (wide / (1.0 + tl.exp(-wide))).to(out.dtype.element_ty).to(tl.float32)
            result = (gate * up.to(out.dtype.element_ty).to(tl.float32)).to(out.dtype.element_ty)
        tl.store(out + at, result, mask=real)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, gated: bool = False, steady: bool = False
) -> Tensor:
    """As `linear_torch`; on a GPU by what was found faster for these shapes, or by one kernel if `steady`."""
    if not by_kernel(x):
        return linear_torch(x, weight, bias, gated=gated, steady=steady)
    stream = steady_stream(x, gated=gated) if steady else chosen(x.shape[0], weight, gated=gated)
    return product(x, weight, bias, stream, gated=gated)


def _weights_first(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, in] on a CPU -> [T, out]. A row alone is taken twice, which is faster than the product with a vector."""
    count = x.shape[0]
    rows = x.repeat(2, 1) if count == 1 else x
    out = (weight @ rows.T).T[:count].contiguous()
    return out if bias is None else out.add_(bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, stream: Stream | None, *, gated: bool) -> Tensor:
    """As `linear_torch` on a GPU, by the kernel of that shape, or by the library."""
    if stream is not None:
        return linear_triton(x, weight, bias, stream, gated=gated)
    out = F.linear(x, weight, bias)
    return swiglu(out) if gated else out
