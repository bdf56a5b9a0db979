"""The matrix of lossless decoding: its axes, a cover of them, and what must hold in each cell."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

from eagle3.config.shape import DraftShape
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from helpers.families import FAMILIES, family_pair
from helpers.pairs import SMALL, engine, facts, near_pair, random_head, random_target
from helpers.trace import Trace, preempt_often, serve
from oracles.dense import all_drafts, counts_of, offsets
from oracles.official_tree import Draft

SHAPES = {f"chain{D}": DraftShape(depth=D, top_k=1, nodes=D + 1) for D in (1, 3, 7)} | {
    f"tree{K}-{D}-{total}": DraftShape(depth=D, top_k=K, nodes=total + 1)
    for K, D, total in ((2, 1, 2), (2, 3, 3), (2, 3, 6), (4, 4, 16), (8, 2, 16), (10, 6, 60))
}
AXES: dict[str, tuple[object, ...]] = {
    "shape": tuple(SHAPES),
    "page": (1, 4, 16, 64),
    "batch": (1, 7),
    "chunk": (1, 3, 16, None),
    "pool": ("separate", "joint"),
    "pair": ("near", "random"),  # long runs, and attention that all depends on
    "kv_heads": (2, 4),
    "preempted": (False, True),
}
LENGTHS = (1, 3, 5, 9, 17, 2, 12)
PROMPTS = [[(7 * i + 3 * j) % 16 for j in range(n)] for i, n in enumerate(LENGTHS)]
NEW = 12
SAMPLINGS: list[dict[str, Any]] = [
    {"max_new_tokens": NEW, "seed": 11 + i, "temperature": float(i % 3 > 0), "top_p": 0.9 if i % 3 == 2 else 1.0}
    for i in range(len(PROMPTS))
]
ALONE = (3, 4)  # the requests of batch 1, one after the other: one greedy, one sampled


@dataclass(frozen=True)
class Cell:
    """A place in the matrix."""

    shape: str
    page: int
    batch: int
    chunk: int | None
    pool: str
    pair: str
    kv_heads: int
    preempted: bool

    def __str__(self) -> str:
        mark = "-preempted" if self.preempted else ""
        models = f"{self.pair}{self.kv_heads}"
        return f"{self.shape}-page{self.page}-batch{self.batch}-chunk{self.chunk}-{self.pool}-{models}{mark}"

    @property
    def requests(self) -> Sequence[int]:
        """Indices into PROMPTS."""
        return ALONE if self.batch == 1 else range(self.batch)


def combos(values: Mapping[str, object], strength: int) -> set[tuple[tuple[str, object], ...]]:
    """All combinations of so many axes' values that a cell of these values has."""
    return set(combinations(values.items(), strength))


def cover(axes: Mapping[str, Sequence[object]], strength: int, seed: int = 0) -> Iterator[dict[str, object]]:
    """Cells that have every combination of `strength` axes' values at least once: greedy, the same for a seed."""
    rng = random.Random(seed)
    wanted = [
        combo
        for names in combinations(axes, strength)
        for combo in product(*([(name, value) for value in axes[name]] for name in names))
    ]
    missing = set(wanted)
    for combo in wanted:
        if combo not in missing:
            continue
        fixed = dict(combo)
        tries = [{name: fixed.get(name, rng.choice(values)) for name, values in axes.items()} for _ in range(20)]
        best = max(tries, key=lambda cell: len(combos(cell, strength) & missing))
        missing -= combos(best, strength)
        yield best


def cells(least: int) -> list[Cell]:
    """Every combination of three axes' values, filled up at random to so many cells."""
    found = {Cell(**values): None for values in cover(AXES, 3)}  # type: ignore[arg-type]
    everything = all_cells()
    random.Random(0).shuffle(everything)
    for cell in everything:
        if len(found) >= least:
            break
        found[cell] = None
    return sorted(found, key=lambda cell: (cell.pair, cell.kv_heads, cell.shape))  # what cells share is computed once


def all_cells() -> list[Cell]:
    """The full product."""
    return [Cell(*values) for values in product(*AXES.values())]  # type: ignore[arg-type]


@cache
def models(pair: str, kv_heads: int) -> tuple[Decoder, EagleHead]:
    if pair == "near":
        return near_pair(kv_heads)
    if pair in FAMILIES:
        return family_pair(pair, kv_heads)
    target = random_target(facts(16, hidden=16, layers=4, kv_heads=kv_heads), seed=1, std=0.5)
    return target, random_head(target, seed=2, std=0.5)


@cache
def plain(pair: str, kv_heads: int, request: int) -> tuple[int, ...]:
    """What the target alone says, a longest path further than any cell asks for."""
    longest = max(shape.path for shape in SHAPES.values())
    sampling = SAMPLINGS[request] | {"max_new_tokens": NEW + longest}
    (result,) = engine(models(pair, kv_heads)[0], batch=1).generate([PROMPTS[request]], [sampling])
    return tuple(result.token_ids)


@cache
def all_guessed(pair: str, kv_heads: int, request: int) -> Callable[[int], Draft]:
    """What the head guesses of a request, in trees of any shape."""
    return all_drafts(*models(pair, kv_heads), SMALL, [*PROMPTS[request], *plain(pair, kv_heads, request)])


@cache
def expected(shape: str, pair: str, kv_heads: int, request: int) -> tuple[list[int], list[int]]:
    """A request's tokens, and what each of its steps accepts."""
    tokens, prompt = plain(pair, kv_heads, request), PROMPTS[request]
    guessed, d2t = all_guessed(pair, kv_heads, request), offsets(models(pair, kv_heads)[1])
    counts = counts_of(guessed, d2t, [*prompt, *tokens], len(prompt), NEW, SHAPES[shape])
    return list(tokens[:NEW]), counts


def run(cell: Cell) -> list[Trace]:
    """Serve the cell's requests. Pages of one entry or four run out by themselves; else preemption is forced.

    The widest tree's reserve is so large that its pool, in some cells, lasts, and so it does for a few requests: it is
    forced too.
    """
    target, head = models(cell.pair, cell.kv_heads)
    shape, starved = SHAPES[cell.shape], cell.preempted and cell.batch > 5 and cell.page <= 4
    starved = starved and cell.shape != "tree10-6-60"
    built = engine(
        target,
        (head, SMALL),
        shape,
        page=cell.page,
        batch=cell.batch,
        max_seq_len=32,
        chunk=cell.chunk,
        joint=cell.pool == "joint",
        tokens=2 * (shape.path + shape.reserve) + 34 if starved else None,  # two, as long as they are short,
    )
    if cell.preempted and not starved:
        preempt_often(built.scheduler, 3)
    return serve(built, [PROMPTS[i] for i in cell.requests], [SAMPLINGS[i] for i in cell.requests])


def check(cell: Cell, traces: Sequence[Trace]) -> None:
    """Tokens and accepted counts are what the target alone and the slow oracle say, whatever the cell."""
    for i, trace in zip(cell.requests, traces, strict=True):
        tokens, accepted = expected(cell.shape, cell.pair, cell.kv_heads, i)
        assert trace.tokens == tokens, f"{cell}: request {i} says other tokens"
        assert trace.accepted == accepted, f"{cell}: request {i} accepts otherwise"
    assert (sum(t.preemptions for t in traces) > 0) == cell.preempted
