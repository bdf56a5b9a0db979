"""Attention's result joined by a few keys that each row has for itself alone; there and back."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def own_keys_torch(
    q: Tensor, first: Tensor, lse: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], scale: float
) -> Tensor:
    """One softmax over the keys that `first` and `lse` were made of and s own ones of each row, float32 at least.

    q, first [T, n_h, hd], lse [T, n_h] the logarithm of that softmax's sum, keys and values s times [T, n_kv, hd]
    -> [T, n_h, hd] as q.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    own, read = (torch.stack(list(xs)).to(wide) for xs in (keys, values))  # [s, T, n_kv, hd]
    n_kv = own.shape[2]
    asked, seen, level = (x.to(wide).reshape(x.shape[0], n_kv, -1, *x.shape[2:]) for x in (q, first, lse))
    scores = torch.einsum("tkgd,stkd->tkgs", asked, own) * scale
    weights = torch.cat([level[..., None], scores], 3).softmax(3)  # [T, n_kv, group, 1 + s]
    out: Tensor = weights[..., :1] * seen + torch.einsum("tkgs,stkd->tkgd", weights[..., 1:], read)
    return out.flatten(1, 2).to(q.dtype)


class _OwnKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, first: Tensor, lse: Tensor, scale: float, *both: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(q, first, lse, *both)  # no stacks: steps share their keys, not their stacks
        ctx.scale = scale
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        grid, given, sizes = _launch(q, first, lse, both)
        _own_keys_kernel[grid](*given, out, scale, *sizes[0], **sizes[1])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        q, first, lse, *both = ctx.saved_tensors
        grid, given, sizes = _launch(q, first, lse, both)
        d_q, d_first = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, first))
        d_lse, d_own, d_read = (torch.empty_like(x) for x in given[2:])
        made = d_q, d_first, d_lse, d_own, d_read
        _own_keys_grad_kernel[grid](*given, grads[0].contiguous(), *made, ctx.scale, *sizes[0], **sizes[1])
        return d_q, d_first, d_lse, None, *d_own.unbind(), *d_read.unbind()


def _launch(q: Tensor, first: Tensor, lse: Tensor, both: Sequence[Tensor]) -> tuple[Any, Any, Any]:
    """A program a row and key head; what kernels read; their sizes."""
    (rows, heads, dim), steps = q.shape, len(both) // 2
    own, read = torch.stack(list(both[:steps])), torch.stack(list(both[steps:]))
    group = heads // own.shape[2]
    assert (q.stride(1), q.stride(2), first.stride(2)) == (dim, 1, 1)
    numbers = q.stride(0), first.stride(0), first.stride(1), rows, steps, group, dim
    blocks = {"G": triton.next_power_of_2(group), "E": triton.next_power_of_2(dim)}
    return (rows, own.shape[2]), (q, first, lse.contiguous(), own, read), (numbers, blocks | {"num_warps": 1})


@triton.jit  # type: ignore[untyped-decorator]
def _own_keys_kernel(  # type: ignore[no-untyped-def]
    q,
    first,
    lse,
    own,
    read,
    out,
    scale,
    q_stride,
    first_stride,
    first_head,
    rows,
    steps,
    group,
    dim,
    G: tl.constexpr,
    E: tl.constexpr,
):
    row, kv_head, kv_heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    member, lane = tl.arange(0, G), tl.arange(0, E)
    head = kv_head * group + member
    there, inside = member < group, (member < group)[:, None] & (lane < dim)[None, :]
    asked = tl.load(q + row * q_stride + head[:, None] * dim + lane, mask=inside, other=0.0).to(tl.float32)
    source = first + row * first_stride + head[:, None] * first_head + lane
    seen = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    top = tl.load(lse + row * kv_heads * group + head, mask=there, other=0.0)
    total = tl.full([G], 1.0, tl.float32)
    for step in range(steps):
        at = ((step * rows + row) * kv_heads + kv_head) * dim + lane
        key = tl.load(own + at, mask=lane < dim, other=0.0).to(tl.float32)
        value = tl.load(read + at, mask=lane < dim, other=0.0).to(tl.float32)
        score = tl.sum(asked * key[None, :], 1) * scale
        raised = tl.maximum(top, score)
        old, new = tl.exp(top - raised), tl.exp(score - raised)
        seen = seen * old[:, None] + new[:, None] * value[None, :]
        total = total * old + new
        top = raised
    place = out + (row * kv_heads * group + head[:, None]) * dim + lane
    tl.store(place, (seen / total[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _own_keys_grad_kernel(  # type: ignore[no-untyped-def]
    q,
    first,
    lse,
    own,
    read,
    d_out,
    d_q,
    d_first,
    d_lse,
    d_own,
    d_read,
    scale,
    q_stride,
    first_stride,
    first_head,
    rows,
    steps,
    group,
    dim,
    G: tl.constexpr,
    E: tl.constexpr,
):
    row, kv_head, kv_heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    member, lane = tl.arange(0, G), tl.arange(0, E)
    head = kv_head * group + member
    there, inside = member < group, (member < group)[:, None] & (lane < dim)[None, :]
    place = (row * kv_heads * group + head[:, None]) * dim + lane
    asked = tl.load(q + row * q_stride + head[:, None] * dim + lane, mask=inside, other=0.0).to(tl.float32)
    source = first + row * first_stride + head[:, None] * first_head + lane
    d_seen = tl.load(d_out + place, mask=inside, other=0.0).to(tl.float32)
    level = tl.load(lse + row * kv_heads * group + head, mask=there, other=0.0)
    gain = tl.sum(tl.load(source, mask=inside, other=0.0).to(tl.float32) * d_seen, 1)  # d_out · what is read
    top, total, mean = level, tl.full([G], 1.0, tl.float32), gain  # the softmax, and the mean gain under it
    for step in range(steps):
        at = ((step * rows + row) * kv_heads + kv_head) * dim + lane
        key = tl.load(own + at, mask=lane < dim, other=0.0).to(tl.float32)
        value = tl.load(read + at, mask=lane < dim, other=0.0).to(tl.float32)
        score = tl.sum(asked * key[None, :], 1) * scale
        raised = tl.maximum(top, score)
        old, new = tl.exp(top - raised), tl.exp(score - raised)
        mean = mean * old + new * tl.sum(d_seen * value[None, :], 1)
        total = total * old + new
        top = raised
    mean /= total
    weight = tl.exp(level - top) / total
    tl.store(d_first + place, (weight[:, None] * d_seen).to(d_first.dtype.element_ty), mask=inside)
    tl.store(d_lse + row * kv_heads * group + head, weight * (gain - mean), mask=there)
    d_asked = tl.zeros([G, E], tl.float32)
    for step in range(steps):
        at = ((step * rows + row) * kv_heads + kv_head) * dim + lane
        key = tl.load(own + at, mask=lane < dim, other=0.0).to(tl.float32)
        value = tl.load(read + at, mask=lane < dim, other=0.0).to(tl.float32)
        weight = tl.exp(tl.sum(asked * key[None, :], 1) * scale - top) / total
        d_score = weight * (tl.sum(d_seen * value[None, :], 1) - mean) * scale
        d_asked += d_score[:, None] * key[None, :]
        d_key = tl.sum(d_score[:, None] * asked, 0)  # members that are not there ask with zeros
        d_value = tl.sum(weight[:, None] * d_seen, 0)
        tl.store(d_own + at, d_key.to(d_own.dtype.element_ty), mask=lane < dim)
        tl.store(d_read + at, d_value.to(d_read.dtype.element_ty), mask=lane < dim)
    tl.store(d_q + place, d_asked.to(d_q.dtype.element_ty), mask=inside)


def own_keys_triton(
    q: Tensor, first: Tensor, lse: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], scale: float
) -> Tensor:
    """As `own_keys_torch`, in one launch besides stacking, and one on the way back; no float64."""
    out: Tensor = _OwnKeys.apply(q, first, lse, scale, *keys, *values)  # type: ignore[no-untyped-call]
    return out


def own_keys(
    q: Tensor, first: Tensor, lse: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], scale: float
) -> Tensor:
    """As `own_keys_torch`, by kernels on a GPU; they have a way back, so gradients may be wanted."""
    join = own_keys_triton if q.is_cuda and q.dtype is not torch.float64 else own_keys_torch
    return join(q, first, lse, keys, values, scale)
