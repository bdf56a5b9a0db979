"""A slice of the drafting step's matrix in float32: graphs, the same passes eagerly, and float64 on the CPU agree."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from gpu_engines import GPU, Pair, left, moved, padded, served
from torch import Tensor

from eagle3.config.shape import DraftShape
from helpers.families import FAMILIES
from helpers.matrix import ALONE, NEW, PROMPTS, models
from helpers.pairs import PLAIN, SMALL, engine
from helpers.trace import Trace, preempt_often

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("whole_products")]
SHAPES = {"plain": PLAIN, "chain4": DraftShape(depth=4, top_k=1, nodes=5)} | {
    f"tree{K}-{D}-{total}": DraftShape(depth=D, top_k=K, nodes=total + 1)
    for K, D, total in ((3, 1, 3), (4, 4, 16), (6, 8, 32))
}
DRAWS: dict[str, list[dict[str, Any]]] = {
    "greedy": [{"temperature": 0.0}],
    "sampled": [{"temperature": 1.0}, {"temperature": 0.7}, {"temperature": 0.0}],
    "filtered": [{"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.5, "top_k": 5}, {"temperature": 1.0}],
}
SERVED = ("alone", "ragged", "preempted")  # one by one, or seven that five slots admit as they come free


@dataclass(frozen=True)
class Cell:
    """A place in the slice."""

    shape: str
    draws: str
    pair: str
    served: str

    def __str__(self) -> str:
        return f"{self.shape}-{self.draws}-{self.pair}-{self.served}"


CELLS = [Cell(*values) for values in product(SHAPES, DRAWS, ("near", "random"), SERVED)]
CELLS += [Cell(shape, "sampled", pair, "preempted") for shape in ("plain", "chain4", "tree4-4-16") for pair in FAMILIES]


@cache
def narrow(pair: str) -> Pair:
    return moved(models(pair, 2), torch.float32)


def run(cell: Cell, pair: Pair, capture: bool | None = None) -> tuple[list[Trace], list[Tensor]]:
    """What a cell says and leaves: by graphs, by the same padded passes run eagerly, or (None) by passes unpadded."""
    shape, (target, head) = SHAPES[cell.shape], pair
    alone = cell.served == "alone"
    draft = None if shape is PLAIN else (head, SMALL)
    made = engine(target, draft, shape, batch=1 if alone else 5, max_seq_len=32, chunk=None if alone else 7)
    if capture is not None:
        padded(made, capture=capture)
    if cell.served == "preempted":
        preempt_often(made.scheduler, 3)
    which, kinds = ALONE if alone else range(len(PROMPTS)), DRAWS[cell.draws]
    samplings = [{"max_new_tokens": NEW, "seed": 11 + i, **kinds[i % len(kinds)]} for i in which]
    return served(made, [PROMPTS[i] for i in which], samplings), left(made)


@cache
def exact(cell: Cell) -> list[Trace]:
    """In float64 on the CPU, pass by pass."""
    return run(cell, models(cell.pair, 2))[0]


def said(traces: Sequence[Trace]) -> list[tuple[list[int], list[int]]]:
    return [(trace.tokens, trace.accepted) for trace in traces]


@pytest.mark.parametrize("cell", CELLS if GPU else CELLS[::7], ids=str)
def test_a_slice_of_the_matrix(cell: Cell) -> None:
    traces, state = run(cell, narrow(cell.pair), capture=True)
    eager, same = run(cell, narrow(cell.pair), capture=False)
    assert said(traces) == said(eager)
    assert all(torch.equal(a, b) for a, b in zip(state, same, strict=True)), "graph and eager differ in bits"
    undisturbed = "alone" if cell.served == "alone" else "ragged"
    plain = exact(Cell("plain", cell.draws, cell.pair, undisturbed))
    assert [trace.tokens for trace in traces] == [trace.tokens for trace in plain]
    assert said(traces) == said(exact(Cell(cell.shape, cell.draws, cell.pair, undisturbed)))
    assert (sum(trace.preemptions for trace in traces) > 0) == (cell.served == "preempted")


@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "plain"])
def test_the_slice_accepts(shape: str) -> None:
    """Without runs of several lengths a fault in accepting them would go unseen."""
    cells = [Cell(shape, draws, "near", "ragged") for draws in DRAWS]
    seen = Counter(n for cell in cells for trace in exact(cell) for n in trace.accepted)
    assert set(range(min(SHAPES[shape].depth, 3) + 1)) <= set(seen)
