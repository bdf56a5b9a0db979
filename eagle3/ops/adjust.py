"""Change logits before they are drawn from: penalties for what was said, and no stop while an answer is too short."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import by_kernel, follow, overlapped

BLOCK = 2048


class Terms(NamedTuple):
    """What requests ask of their logits, one row a slot; a row that asks nothing changes nothing."""

    free: Tensor  # [S] i64, the first place in the sequence that a stop id may take
    stops: Tensor  # [S, E] i64, -1 past the end
    repetition: Tensor  # [S] f32, 1: off
    frequency: Tensor  # [S] f32, 0: off
    presence: Tensor  # [S] f32, 0: off
    written: Tensor  # [S, V] i32, how often a token is in the answer, before the root
    prompted: Tensor  # [S, V] u8, whether it is in the prompt


def adjust_torch(
    logits: Tensor,
    terms: Terms,
    slots: Tensor,
    index: Tensor,
    tokens: Tensor,
    mask: Tensor,
    *,
    least: bool,
    penalised: bool,
) -> Tensor:
    """New logits [B · N, V], float64 or float32, for N rows of each of the slots [B] i64.

    index [B · N] i64 is the place in the sequence of the token that a row foretells; tokens [B, N] i64 and the bits of
    mask [B, N, W] i32 are the row's path: what the answer has beyond `written`.
    `penalised`: repetition divides what is above 0 of the tokens of prompt and answer, and multiplies what is below;
    then frequency is taken off for each time in the answer, and presence once.
    `least`: stop ids get -inf before `free`.
    """
    out = logits if logits.dtype is torch.float64 else logits.float()
    if penalised:
        out = _penalised(out, terms, slots, tokens, mask)
    if least:
        stops = terms.stops[slots].repeat_interleave(tokens.shape[1], 0)  # [R, E]
        early = index < terms.free[slots].repeat_interleave(tokens.shape[1])
        size = out.shape[1]
        at = torch.where((stops >= 0) & early[:, None], stops, size)
        cut = torch.zeros(out.shape[0], size + 1, dtype=torch.bool, device=out.device).scatter_(1, at, True)
        out = torch.where(cut[:, :size], -torch.inf, out)
    return out


def _penalised(logits: Tensor, terms: Terms, slots: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    B, N = tokens.shape
    node = torch.arange(N, device=tokens.device)
    path = mask[:, :, node // 32] >> (node % 32).int() & 1  # [B, N, N]
    count = terms.written[slots][:, None].repeat(1, N, 1)  # [B, N, V]
    count.scatter_add_(2, tokens[:, None].expand(B, N, N), path)
    each = logits.view(B, N, -1)
    repetition, frequency, presence = (t[slots][:, None, None].to(each.dtype) for t in terms[2:5])
    seen = (count > 0) | (terms.prompted[slots][:, None] > 0)
    each = torch.where(seen, torch.where(each < 0, each * repetition, each / repetition), each)
    each = each - frequency * count
    return (each - presence * (count > 0)).view_as(logits)


def adjust_triton(
    logits: Tensor,
    terms: Terms,
    slots: Tensor,
    index: Tensor,
    tokens: Tensor,
    mask: Tensor,
    *,
    least: bool,
    penalised: bool,
) -> Tensor:
    """As `adjust_torch`, in one launch. How a row is rounded does not depend on N: there is one kernel for all."""
    (rows, size), nodes, words = logits.shape, tokens.shape[1], mask.shape[2]
    assert logits.stride(1) == 1
    assert all(t.is_contiguous() for t in (*terms, slots, index, tokens, mask))
    out = torch.empty(rows, size, device=logits.device)
    _adjust_kernel[(rows, triton.cdiv(size, BLOCK))](
        logits, out, slots, index, tokens, mask, *terms, logits.stride(0), size, nodes, words, terms.stops.shape[1],
        LEAST=least, PENALISED=penalised, BLOCK=BLOCK, **overlapped(out),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["nodes", "words"])  # type: ignore[untyped-decorator]
def _adjust_kernel(  # type: ignore[no-untyped-def]
    logits,
    out,
    slots,
    index,
    tokens,
    mask,
    free,
    stops,
    repetition,
    frequency,
    presence,
    written,
    prompted,
    stride,
    size,
    nodes,
    words,
    width,
    LEAST: tl.constexpr,
    PENALISED: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    request = row // nodes
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < size
    slot = tl.load(slots + request)
    value = tl.load(logits + row * stride + ids, mask=inside, other=0.0).to(tl.float32)
    if PENALISED:
        count = tl.load(written + slot * size + ids, mask=inside, other=0)
        for node in range(nodes):
            if ((tl.load(mask + row * words + node // 32) >> (node % 32)) & 1) != 0:
                count += (ids == tl.load(tokens + request * nodes + node)).to(tl.int32)
        seen = (count > 0) | (tl.load(prompted + slot * size + ids, mask=inside, other=0) > 0)
        by = tl.load(repetition + slot)
        value = tl.where(seen, tl.where(value < 0, value * by, tl.div_rn(value, by)), value)
        value -= tl.load(frequency + slot) * count.to(tl.float32)
        value -= tl.load(presence + slot) * (count > 0).to(tl.float32)
    if LEAST:  # noqa: SIM102 (one is known when the kernel is compiled)
        if tl.load(index + row) < tl.load(free + slot):
            for i in range(width):
                value = tl.where(ids == tl.load(stops + slot * width + i), float("-inf"), value)
    tl.store(out + row * size + ids, value, mask=inside)


def adjust(
    logits: Tensor,
    terms: Terms,
    slots: Tensor,
    index: Tensor,
    tokens: Tensor,
    mask: Tensor,
    *,
    least: bool,
    penalised: bool,
) -> Tensor:
    """As `adjust_torch`, by the kernel on a GPU."""
    change = adjust_triton if by_kernel(logits) else adjust_torch
    return change(logits, terms, slots, index, tokens, mask, least=least, penalised=penalised)
