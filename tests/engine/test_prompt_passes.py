"""Prompt passes padded to fixed sizes: what is emitted, drafted, stored and kept is what the exact pass gives."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from eagle3.build.engine import prompt_sizes
from eagle3.config.schema import EngineConfig, RuntimeConfig, SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.engine import staging
from eagle3.engine.engine import Engine
from eagle3.engine.graphs import GraphRunner, buckets
from eagle3.engine.prompts import PromptPasses, most_rows, prompt_rows
from eagle3.engine.request import Request, SamplingParams
from eagle3.engine.scheduler import Chunk, Limits
from eagle3.engine.staging import PassSize, occupy, pad, tensors
from eagle3.spec.batch import Accepted
from helpers.pairs import PLAIN, SMALL, engine, near_pair
from helpers.trace import Trace, plans, preempt_often, serve

CHAIN, TREE = DraftShape(depth=3, top_k=1, nodes=4), DraftShape(depth=3, top_k=3, nodes=9)
LENGTHS = (1, 9, 17, 2, 1, 12, 4)
PROMPTS = [[(7 * i + 3 * j) % 16 for j in range(n)] for i, n in enumerate(LENGTHS)]
SAMPLINGS: list[dict[str, Any]] = [
    {"max_new_tokens": 12, "seed": 11 + i, "temperature": float(i % 3 > 0), "top_p": 0.9 if i % 3 == 2 else 1.0}
    for i in range(len(PROMPTS))
]


def built(shape: DraftShape, rows: Sequence[int] = (), **sizes: Any) -> Engine:
    """An engine; with `rows` its passes are padded to them."""
    target, head = near_pair()
    made = engine(target, None if shape is PLAIN else (head, SMALL), shape, max_seq_len=32, **sizes)
    if rows:
        old, limits = made.runner, made.scheduler.limits
        width = -(-shape.entries(limits.max_seq_len) // old.preparer.page)
        known = buckets(limits.max_batch_size), len(made.scheduler.pools), width
        cut = {min(n, most_rows(limits)) for n in rows}
        made.runner = GraphRunner(old.worker, old.preparer, *known, prompt_rows=[*cut], capture=False)
    return made


@cache
def exact(shape: DraftShape, chunk: int | None, batch: int) -> list[Trace]:
    return serve(built(shape, chunk=chunk, batch=batch), PROMPTS, SAMPLINGS)


def passes(made: Engine) -> PromptPasses:
    assert isinstance(made.runner, GraphRunner)
    assert made.runner.prompts is not None
    return made.runner.prompts


def said(traces: Sequence[Trace]) -> list[tuple[list[int], list[int]]]:
    return [(t.tokens, t.accepted) for t in traces]


@pytest.mark.parametrize("shape", [PLAIN, CHAIN, TREE], ids=["plain", "chain", "tree"])
@pytest.mark.parametrize("rows", [(64,), (1, 2, 7, 16, 33, 64)], ids=["one-size", "many-sizes"])
@pytest.mark.parametrize(("chunk", "batch"), [(None, 4), (5, 4), (3, 1), (None, 7)])
def test_padding_changes_nothing(shape: DraftShape, rows: tuple[int, ...], chunk: int | None, batch: int) -> None:
    found = serve(built(shape, rows, chunk=chunk, batch=batch), PROMPTS, SAMPLINGS)
    assert said(found) == said(exact(shape, chunk, batch))
    assert shape is PLAIN or sum(sum(t.accepted) for t in found) > 20, "drafts count"


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("joint", [False, True], ids=["separate", "joint"])
def test_preempted_requests_resume(shape: DraftShape, joint: bool) -> None:
    made = built(shape, (8, 64), chunk=5, batch=4, joint=joint)
    preempt_often(made.scheduler, 3)
    found = serve(made, PROMPTS, SAMPLINGS)
    assert sum(t.preemptions for t in found) > 0
    assert said(found) == said(exact(shape, None, 4))


def test_drafts_that_are_drawn() -> None:
    drawn = SpecConfig(use_rejection_sampling=True)
    want = serve(built(CHAIN, spec=drawn), PROMPTS, SAMPLINGS)
    assert said(serve(built(CHAIN, (8, 64), spec=drawn), PROMPTS, SAMPLINGS)) == said(want)


def test_a_pass_larger_than_all_sizes_keeps_its_own() -> None:
    made, seen = built(TREE, (1, 8)), []
    prompts, run = passes(made), passes(made).run

    def spy(chunks: Sequence[Chunk]) -> Accepted:
        seen.append(sum(c.end - c.start for c in chunks))
        return run(chunks)

    prompts.run = spy  # type: ignore[method-assign]
    scheduled = plans(made)
    assert said(serve(made, PROMPTS, SAMPLINGS)) == said(exact(TREE, None, 4))
    rows = [sum(c.end - c.start for c in plan.chunks) for plan in scheduled if plan.chunks]
    assert seen == [n for n in rows if n <= 8]
    assert 0 < len(seen) < len(rows)


def chunks(made: Engine) -> list[Chunk]:
    """Prompts that end after one row and after several, one that goes on, a resumed one, and what each draws."""
    ends: frozenset[int] = frozenset()
    greedy, drawn = SamplingParams(9, 0.0, 0, 1.0, 0.0, 1, ends), SamplingParams(9, 1.0, 5, 0.9, 0.0, 2, ends)
    wanted = [([3], 1, greedy), ([4, 5, 6, 7, 8], 5, drawn), ([9, 10, 11, 12], 3, drawn), ([13, 14, 2], 2, greedy)]
    found, page = [], 1
    for i, (tokens, end, sampling) in enumerate(wanted):
        resumed = i == 3
        request = Request(str(i), tokens, sampling, len(tokens) - resumed, 9, slot=i, prefill=len(tokens) - resumed)
        request.pages = [[*range(page, page + 6)] for _ in made.scheduler.pools]
        page += 6
        found.append(Chunk(request, 0, end, last=i != 2, emits=i < 2))
    return found


def state(made: Engine) -> list[torch.Tensor]:
    """All that a pass leaves: slots, and the pools but for page 0."""
    worker = made.runner.worker
    pools = [worker.pool] if worker.spec is None else [worker.pool, worker.spec.drafter.pool]
    slots = worker.slots
    own = [*slots.tree.tensors(), slots.length, slots.has_tree, *slots.sampling.tensors()]
    return [t.clone() for t in own + [group[:, 1:] for pool in pools for group in pool.groups]]


@torch.inference_mode()
@pytest.mark.parametrize("shape", [PLAIN, CHAIN, TREE], ids=["plain", "chain", "tree"])
@pytest.mark.parametrize("rows", [11, 12, 16, 64], ids=["no-padding-row", "one", "some", "many"])
@pytest.mark.parametrize("batch", [4, 6], ids=["full", "padding-requests"])
def test_one_pass_leaves_the_same(shape: DraftShape, rows: int, batch: int) -> None:
    plain, padded = built(shape, batch=batch), built(shape, (rows,), batch=batch)
    want = plain.runner.contexts(chunks(plain))
    found = padded.runner.contexts(chunks(padded))
    assert torch.equal(found.tokens, want.tokens)
    assert torch.equal(found.counts, want.counts)
    for mine, other in zip(state(padded), state(plain), strict=True):
        assert torch.allclose(mine, other, rtol=0, atol=1e-12)


@torch.inference_mode()
@pytest.mark.parametrize("row", [0, 5], ids=str)
def test_a_row_that_two_requests_predict_from_is_seen(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows 0 and 5 are the last of a chunk that ends its prompt: the token that it draws is lost."""
    plain, padded = built(TREE, batch=6), built(TREE, (11,), batch=6)
    monkeypatch.setattr(staging, "unread", lambda *_: row)
    plain.runner.contexts(chunks(plain))
    padded.runner.contexts(chunks(padded))
    assert not all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(state(padded), state(plain), strict=True))


@pytest.mark.parametrize("lengths", [(1, 3), (1, 1, 2), (1, 3, 1)])
@pytest.mark.parametrize("more", [0, 1, 4])
def test_padding_predicts_from_a_row_of_its_own(lengths: tuple[int, ...], more: int) -> None:
    made = built(CHAIN, batch=4)
    given = []
    for i, n in enumerate(lengths):
        request = Request(str(i), [1] * n, SamplingParams(1, 0.0, 0, 1.0, 0.0, 0, frozenset()), n, 1, slot=i, prefill=n)
        request.pages = [[1 + i, 5 + i] for _ in made.scheduler.pools]
        given.append(Chunk(request, 0, n, last=True, emits=True))
    size = PassSize(sum(lengths) + more, 4, True, 2, 12)
    into = size.view(torch.zeros(size.nbytes, dtype=torch.uint8))
    pad(made.runner.preparer.contexts(given), into, dummy=4, page=4)
    real, spare = into.predict[: len(lengths)].tolist(), into.predict[len(lengths) :].tolist()
    assert not set(real) & set(spare)
    assert all(0 <= row < size.rows for row in spare)


def test_the_fields_of_a_stage() -> None:
    """As a prepared pass has them, aligned for kernels, and none over another."""
    made = built(TREE)
    size = PassSize(19, 3, True, 2, 7)
    data = torch.zeros(size.nbytes, dtype=torch.uint8)
    views, prepared = tensors(size.view(data)), tensors(made.runner.preparer.contexts(chunks(made)))
    assert [t.dtype for t in views] == [t.dtype for t in prepared]
    assert [t.dim() for t in views] == [t.dim() for t in prepared]
    assert all((t.data_ptr() - data.data_ptr()) % 16 == 0 for t in views)
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in views)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert spans[-1][1] <= data.data_ptr() + size.nbytes


@torch.inference_mode()
@pytest.mark.parametrize("shape", [PLAIN, TREE], ids=["plain", "tree"])
def test_what_is_captured_touches_nobody(shape: DraftShape) -> None:
    made = built(shape, (1, 8, 64))
    made.runner.contexts(chunks(made))  # whose slots and pages are in use
    worker, before = made.runner.worker, state(made)
    for size in passes(made).sizes():
        batch = size.view(torch.zeros(size.nbytes, dtype=torch.uint8))
        occupy(batch, worker.slots.dummy, worker.pool.page)
        assert int(batch.metas[0].cu_q[-1]) > size.rows - size.requests or size.rows > 40, "as full as can be"
        assert not worker.contexts(batch).counts.any()
        assert all(torch.equal(now, was) for now, was in zip(state(made), before, strict=True))


def test_every_pass_has_a_size() -> None:
    made = built(TREE, (1, 2, 16, 64), batch=4)
    prompts = passes(made)
    sizes = prompts.sizes()
    assert sizes == sorted(sizes, reverse=True), "the largest first"
    assert len(sizes) == len(set(sizes))
    for rows in range(1, 65):
        for count in range(1, min(rows, 4) + 1):
            for ending in (True, False):
                found = prompts._size(rows, count, ending)
                assert found in sizes
                assert found.rows >= rows
                assert found.requests >= count
    assert prompts._size(9, 1, True).requests == 1
    assert prompts._size(9, 1, False).requests == 4


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, [1]),
        (16, [16]),
        (70, [16, 64, 70]),
        (512, [16, 64, 256, 512]),
        (2048, [16, 64, 256, 512, 768, 1024, 1536, 2048]),
        (3000, [16, 64, 256, 512, 768, 1024, 1536, 2048, 3000]),
    ],
)
def test_sizes(most: int, sizes: list[int]) -> None:
    assert prompt_rows(most) == sizes


@pytest.mark.parametrize(
    ("limits", "most"),
    [(Limits(8, 4096, 2048, 2048), 2048), (Limits(2, 100, 2048, 2048), 200), (Limits(2, 100, 2048, 30), 60)],
)
def test_no_size_is_larger_than_a_pass(limits: Limits, most: int) -> None:
    assert most_rows(limits) == most
    assert prompt_sizes(EngineConfig(), limits)[-1] == most
    asked = EngineConfig(runtime=RuntimeConfig(cuda_graph_prompt_rows=[2000, 16, 1999]))
    assert prompt_sizes(asked, limits) == sorted({16, min(1999, most), min(2000, most)})
    assert prompt_sizes(EngineConfig(runtime=RuntimeConfig(cuda_graph_prompt_rows=[])), limits) == []
