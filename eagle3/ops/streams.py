"""Which kernel shape streams a weight fastest: measured once, kept on disk, looked up ever after."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from statistics import median

import torch
import triton
from torch import Tensor

from eagle3.config.cache import cache_folder

MOST_ROWS = 128  # beyond, products are bound by arithmetic and the library is best


@dataclass(frozen=True)
class Stream:
    """A program of `ops.linear`: tokens, rows and columns of a weight's block, parts of the columns, warps, loads."""

    rows: int
    outs: int
    depth: int
    splits: int
    warps: int
    stages: int


def block_rows(count: int) -> int:
    """Tokens a program takes of `count`: fewer than 32 gain nothing."""
    return min(max(32, 1 << (count - 1).bit_length()), MOST_ROWS)


def steady_stream(dtype: torch.dtype, *, gated: bool) -> Stream:
    """One shape for any number of tokens and any weight."""
    if dtype == torch.float32:
        return Stream(16, 32, 32, 1, 4, 3)
    return Stream(64, 64, 64 if gated else 128, 1, 4, 4)


def usual(count: int, outs: int, depth: int, *, gated: bool) -> Stream | None:
    """What was fastest on an H200 for half types, None being the library; for weights that nobody measured yet."""
    rows = block_rows(count)
    if count > MOST_ROWS or depth % 256:
        return None
    if gated:
        return Stream(rows, 128, 64, 1, 8, 4) if rows > 64 else Stream(rows, 64, 64, 1, 4, 4)
    if rows > 64:
        return None
    if outs >= 1 << 16:
        return Stream(rows, 128, 128, 1, 8, 4)
    if outs >= 1 << 14:
        return Stream(rows, 128, 64, 1, 8, 6)
    short = depth <= 4096 and rows > 32
    return Stream(rows, 64, 128, 1 if outs > 4096 or short else 2, 4, 6)


def candidates(count: int, *, gated: bool) -> list[Stream]:
    """What is worth a measurement."""
    rows = block_rows(count)
    if gated:
        shapes = [(64, 64, 1, 4, 4), (64, 64, 1, 4, 6), (128, 64, 1, 8, 4)]
    elif rows > 64:
        shapes = [(64, 128, 1, 4, 4), (64, 128, 2, 4, 4), (128, 64, 1, 8, 6)]
    else:
        shapes = [
            *((64, 128, splits, 4, stages) for splits in (1, 2) for stages in (4, 6)),
            (64, 256, 1, 4, 3), (128, 64, 1, 8, 6), (128, 128, 1, 8, 4), (128, 64, 2, 8, 6),
        ]  # fmt: skip
    return [Stream(rows, *shape) for shape in shapes]


def chosen(count: int, weight: Tensor, *, gated: bool) -> Stream | None:
    """The stream for `count` tokens and a weight [out, in], None: the library's product."""
    if count > MOST_ROWS or weight.dtype.itemsize != 2:
        return None
    tuned = table(weight.device)
    name = key(count, weight, gated=gated)
    if name in tuned:
        return tuned[name]
    return usual(count, weight.shape[0] // (2 if gated else 1), weight.shape[1], gated=gated)


def key(count: int, weight: Tensor, *, gated: bool) -> str:
    """What a choice is kept under: tokens a program, the weight's shape and type."""
    outs, depth = weight.shape
    return f"{'gated ' if gated else ''}{outs}x{depth} {str(weight.dtype)[6:]} {block_rows(count)}"


def tuned_file(device: torch.device) -> Path:
    """Choices belong to a GPU and to the versions that compile for it."""
    name = f"{torch.cuda.get_device_name(device)} torch {torch.__version__} triton {triton.__version__}"
    return cache_folder() / "tuned" / (re.sub(r"[^\w.+]+", "-", name) + ".json")


@cache
def table(device: torch.device) -> dict[str, Stream | None]:
    """The choices on disk, read once a process; an unreadable file counts as none."""
    try:
        found = json.loads(tuned_file(device).read_text())
        return {name: None if row is None else Stream(*map(int, row)) for name, row in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def tune(
    weights: Sequence[Tensor], count: int, run: Callable[[Tensor, Tensor, Stream | None], object], *, gated: bool
) -> bool:
    """Find the fastest stream for `count` tokens and weights of one shape, and keep it; False if it is known.

    `run(x, weight, stream)` computes one product. Several weights, so that none is in the cache when its turn comes.
    """
    device, name = weights[0].device, key(count, weights[0], gated=gated)
    if name in table(device) or count > MOST_ROWS or weights[0].dtype.itemsize != 2:
        return False
    x = torch.randn(count, weights[0].shape[1], device=device).to(weights[0].dtype)
    options: list[Stream | None] = [None, *candidates(count, gated=gated)]
    times = [graph_us([lambda w=w, o=o: run(x, w, o) for w in weights]) for o in options]  # type: ignore[misc]
    table(device)[name] = options[times.index(min(times))]
    return True


def save(device: torch.device) -> None:
    """Write the choices for the next start; whole, or not at all."""
    file = tuned_file(device)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({k: v and astuple(v) for k, v in sorted(table(device).items())}, indent=0))
    part.replace(file)


def graph_us(calls: Sequence[Callable[[], object]], replays: int = 5) -> float:
    """Median microseconds of a call, all of them in one CUDA graph."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * float(start.elapsed_time(end)) / len(calls))
    return median(times)
