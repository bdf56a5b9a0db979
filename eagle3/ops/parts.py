"""Attention whose entries are split among programs: into how many parts, and their sum."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.dispatch import follow, overlapped
from eagle3.ops.paged_blocks import Tile

LEAST_SPLIT = 256  # entries a part, at least; of a tile of few rows, which is soon done, one block
LONG = 8192  # entries from which large tiles pay
MOST_SPLITS = 64


def choose_splits(programs: int, width: int, processors: int, tile: Tile) -> int:
    """Into how many parts to split the entries, where one part each makes `programs` and tables hold `width`.

    A function of shapes alone, so that a CUDA graph may hold it. One part needs no second launch.
    """
    if programs >= processors and width < LONG:
        return 1
    room = processors * max(1, 8 // tile.warps)
    most = min(MOST_SPLITS, max(1, width // (LEAST_SPLIT if tile.rows > 16 else tile.entries)))
    if most * programs <= room:
        return most
    busy = [s * programs / (room * -(-s * programs // room)) for s in range(1, most + 1)]  # share of the waves
    return next(s for s, share in enumerate(busy, 1) if share >= 0.9 * max(busy))


@lru_cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a CPU passes for a small one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def combine_parts(parts: Tensor, logs: Tensor, out: Tensor) -> None:
    """parts [rows, n_h, splits, hd] f32 of weights 2 ** logs [rows, n_h, splits] -> out [rows, n_h, hd].

    Where logs are -inf the part may be anything.
    """
    rows, n_h, splits, hd = parts.shape
    _combine_kernel[(rows * n_h,)](
        parts, logs, out, splits, HEAD=hd, BLOCK_D=triton.next_power_of_2(hd),
        BLOCK_S=triton.next_power_of_2(splits), num_warps=2, **overlapped(out),
    )  # fmt: skip


@triton.jit(do_not_specialize=["splits"])  # type: ignore[untyped-decorator]
def _combine_kernel(  # type: ignore[no-untyped-def]
    parts, logs, out, splits, HEAD: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, OVERLAP: tl.constexpr
):  # fmt: skip
    """out [rows · n_h, HEAD] of parts [rows · n_h, splits, HEAD], each weighted by 2 ** logs; -inf: not written."""
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    split, dim = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    log = tl.load(logs + row * splits + split, mask=split < splits, other=float("-inf"))
    top = tl.max(log, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(log - top), 0)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    CHUNK: tl.constexpr = min(BLOCK_S, 16)
    for first in range(0, splits, CHUNK):
        at = first + tl.arange(0, CHUNK)
        real = (at < splits)[:, None] & (dim < HEAD)[None, :]
        # read whether written or not, so that it need not wait for the logs
        part = tl.load(parts + (row * splits + at)[:, None] * HEAD + dim[None, :], mask=real, other=0.0)
        some = tl.load(logs + row * splits + at, mask=at < splits, other=float("-inf"))
        part = tl.where((some != float("-inf"))[:, None], part, 0.0)
        acc += tl.sum(part * tl.exp2(some - top)[:, None], 0)
    acc = acc / tl.where(total == 0, 1.0, total)
    tl.store(out + row * HEAD + dim, acc.to(out.dtype.element_ty), mask=dim < HEAD)
