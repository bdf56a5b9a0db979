"""Finds the fastest way to stream each weight at the rows that a step will have; once a GPU, kept on disk."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from eagle3.nn.embedding import Embedding
from eagle3.nn.linear import Linear
from eagle3.nn.mlp import MLP
from eagle3.ops.linear import product
from eagle3.ops.rms_norm import rms_norm
from eagle3.ops.streams import MOST_ROWS, Stream, block_rows, save, tune
from eagle3.spec.worker import Worker

MANY = 8  # weights of a shape that take turns: more than a cache holds


@torch.inference_mode()
def tune_step(worker: Worker, requests: Sequence[int], tell: Callable[[str], None] = lambda _: None) -> int:
    """Measure what a step for so many requests will compute and no file knows yet; how many choices were new."""
    found = 0
    for weights, gated, counts in work(worker, requests):
        for count in counts:
            outs, depth = weights[0].shape
            tell(f"tuning {outs} × {depth}, {count} rows")
            found += tune(weights, count, partial(_once, gated=gated), gated=gated)
    if found:
        save(worker.target.embed.weight.device)
    return found


def _once(x: Tensor, weight: Tensor, stream: Stream | None, *, gated: bool) -> Tensor:
    """A product after a norm, as in a model: what a kernel does while the one before ends is counted."""
    normed, _ = rms_norm(x, x[0], 1e-6)
    return product(normed, weight, None, stream, gated=gated)


def work(worker: Worker, requests: Sequence[int]) -> Iterator[tuple[list[Tensor], bool, list[int]]]:
    """Weights of one shape, whether they are gated, and the rows that each kind of program sees, one count a kind."""
    shape, head = worker.shape, worker.spec and getattr(worker.spec.drafter, "head", None)
    sides: list[tuple[nn.Module, set[int]]] = [(worker.target, {n * shape.nodes for n in requests})]
    if isinstance(head, nn.Module):
        sides.append((head, {n * rows for n in requests for rows in (1, shape.path, shape.top_k)}))
    groups: dict[tuple[torch.Size, bool], tuple[list[Tensor], set[int]]] = {}
    for module, counts in sides:
        for weight, gated in streamed(module):
            weights, rows = groups.setdefault((weight.shape, gated), ([], set()))
            weights.append(weight)
            rows |= counts
    for (_, gated), (weights, rows) in groups.items():
        kinds = {block_rows(n): n for n in sorted(rows) if n <= MOST_ROWS}
        yield weights[:MANY], gated, list(kinds.values())


def streamed(module: nn.Module) -> Iterator[tuple[Tensor, bool]]:
    """The weights that a model's rows are multiplied with, and which of them end in a gate."""
    gates = {id(m.gate_up) for m in module.modules() if isinstance(m, MLP)}
    for part in module.modules():
        if isinstance(part, Linear | Embedding) and part.steady:
            continue  # one shape for all
        if isinstance(part, Linear):
            yield part.weight, id(part) in gates
        elif isinstance(part, Embedding) and getattr(module, "lm_head", part) is None:
            yield part.weight, False
