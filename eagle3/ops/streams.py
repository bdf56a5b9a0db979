"""Which kernel shape streams a weight fastest: measured once, kept on disk, looked up ever after."""

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from statistics import median

import torch
import triton
from torch import Tensor

from eagle3.config.files import cache_folder, write_whole
from eagle3.ops.dispatch import shared_memory

log = logging.getLogger(__name__)

GATED = "gated "
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


def steady_stream(x: Tensor, *, gated: bool) -> Stream:
    """One shape on a GPU for any number of tokens like x and any weight."""
    if x.dtype == torch.float32:
        return Stream(16, 32, 32, 1, 4, 3)
    large = Stream(64, 64, 64 if gated else 128, 1, 4, 4)
    return large if shared_bytes(large, gated=gated) <= shared_memory(x.device) else Stream(64, 64, 64, 1, 4, 3)


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
    stream = usual(count, weight.shape[0] // (2 if gated else 1), weight.shape[1], gated=gated)
    return stream if stream is None or shared_bytes(stream, gated=gated) <= shared_memory(weight.device) else None


def shared_bytes(stream: Stream, *, gated: bool, itemsize: int = 2) -> int:
    """What a program's loads in flight take of a multiprocessor's memory, at most."""
    return stream.stages * (stream.rows + stream.outs * (2 if gated else 1)) * stream.depth * itemsize


def key(count: int, weight: Tensor, *, gated: bool) -> str:
    """What a choice is kept under: tokens a program, the weight's shape and type."""
    outs, depth = weight.shape
    return f"{GATED if gated else ''}{outs}x{depth} {str(weight.dtype)[6:]} {block_rows(count)}"


def tuned_file(device: torch.device) -> Path:
    """Choices belong to a GPU and to the versions that compile for it."""
    name = f"{torch.cuda.get_device_name(device)} torch {torch.__version__} triton {triton.__version__}"
    return cache_folder() / "tuned" / (re.sub(r"[^\w.+]+", "-", name) + ".json")


@cache
def table(device: torch.device) -> dict[str, Stream | None]:
    """The choices on disk, read once a process."""
    return _read(tuned_file(device))


def _read(file: Path) -> dict[str, Stream | None]:
    """A file's choices; what is damaged, or no candidate of ours, counts as not there."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    kept: dict[str, Stream | None] = {}
    for name, row in found.items() if isinstance(found, dict) else ():
        known = {json.dumps(astuple(c)): c for c in candidates(_rows(name), gated=name.startswith(GATED))}
        text = json.dumps(row)
        if row is None or text in known:
            kept[name] = known.get(text)
    return kept


def _rows(name: str) -> int:
    """Tokens a program in a key; those of the least for what is none."""
    last = name.rpartition(" ")[2]
    return int(last) if last in ("32", "64", "128") else 1


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
    fitting = [c for c in candidates(count, gated=gated) if shared_bytes(c, gated=gated) <= shared_memory(device)]
    options: list[Stream | None] = [None, *fitting]
    times = graph_us([[lambda w=w, o=o: run(x, w, o) for w in weights] for o in options])  # type: ignore[misc]
    table(device)[name] = options[times.index(min(times))]
    return True


def save(device: torch.device) -> None:
    """Write the choices for the next start, beside those that others wrote meanwhile; whole, or not at all.

    Where nothing can be written a warning says so: they serve this process all the same.
    """
    file = tuned_file(device)
    rows = {**_read(file), **table(device)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({k: v and astuple(v) for k, v in sorted(rows.items())}, indent=0))
    except OSError as error:
        log.warning("tuned choices are not kept, the next start tunes again: %s", error)


def graph_us(options: Sequence[Sequence[Callable[[], object]]], replays: int = 25) -> list[float]:
    """Median microseconds of a call of each option, all calls of one in one CUDA graph.

    The graphs take turns, so that a clock that rises or falls meanwhile favours none.
    """
    graphs = [_captured(calls) for calls in options]
    times: list[list[float]] = [[] for _ in options]
    for turn in range(replays + 1):  # the first only warms
        for graph, calls, own in zip(graphs, options, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            own += [1e3 * float(start.elapsed_time(end)) / len(calls)] * (turn > 0)
    return [median(own) for own in times]


def _captured(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph
