"""Counter-based random numbers: Philox-4x32-10 in 64-bit integers, which a kernel can repeat bit by bit.

A number depends on a request's seed, the place in the sequence, the vocabulary id and the stream alone.
"""

# ruff: noqa: ANN001, ANN201 (a kernel's arguments have no Python types)

from enum import IntEnum

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


class Stream(IntEnum):
    """What a number is drawn for; each stream is independent of the others."""

    TARGET = 0
    DRAFT = 1
    COIN = 2
    RESIDUAL = 3


def philox(key: tuple[Tensor, Tensor], counter: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words, in int64, for a key of two and a counter of four such words; shapes broadcast."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        # a product may pass 2^63; its 64 bits, and so both halves under the mask, are right all the same
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((p1 >> 32) & _LOW) ^ c1 ^ k0, p1 & _LOW
        c2, c3 = ((p0 >> 32) & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniform(words: Tensor) -> Tensor:
    """float32 in (0, 1), both ends out, from the top 23 bits of 32-bit words; every value is exact."""
    return ((words >> 9).float() + 0.5) * 2.0**-23


def noise(seed: Tensor, index: Tensor, stream: Stream, size: int) -> Tensor:
    """Uniforms [R, size], one a vocabulary id, for seeds [R] i64 and places in the sequence [R] i64."""
    groups = torch.arange(-(-size // 4), device=seed.device)  # ids 4c … 4c + 3 share a counter
    lanes = philox(_words(seed[:, None]), (groups, *_words(index[:, None]), torch.full_like(groups, stream)))
    return uniform(torch.stack(lanes, dim=-1).flatten(1)[:, :size])


def coin(seed: Tensor, index: Tensor, stream: Stream) -> Tensor:
    """One uniform [R] a row: that of vocabulary id 0 in `noise`."""
    return noise(seed, index, stream, 1)[:, 0]


def _words(value: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high 32 bits of an int64."""
    return value & _LOW, (value >> 32) & _LOW


@triton.jit
def uniforms(seed, index, stream, group):  # type: ignore[no-untyped-def]
    """`noise` of one row for the ids 4g … 4g + 3 of each g of group [n]: float32 [n, 4]."""
    counter = group.to(tl.uint32)
    none = counter * 0
    low = none + (index & 0xFFFFFFFF).to(tl.uint32)
    high = none + ((index >> 32) & 0xFFFFFFFF).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, counter, low, high, none + stream.to(tl.uint32))
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # [n, 2, 2], word 2i + j at [:, i, j]
    return ((tl.reshape(words, [group.shape[0], 4]) >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
