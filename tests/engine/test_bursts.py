"""Batches that grow and shrink through padded steps, and the sizes that steps are padded to."""

import pytest

from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from eagle3.engine.graphs import GraphRunner, buckets
from helpers.pairs import SMALL, engine, near_pair
from helpers.trace import serve

SHAPES = {"chain": DraftShape(depth=3, top_k=1, nodes=4), "tree": DraftShape(depth=3, top_k=3, nodes=9)}
BURSTS = (8, 5, 3, 8, 1)


def padded(shape: DraftShape, batch: int) -> tuple[Engine, list[int]]:
    """An engine that pads as graphs do, and the numbers of generations that its steps will have."""
    target, head = near_pair()
    made = engine(target, (head, SMALL), shape, batch=batch, max_seq_len=48)
    old, width = made.runner, shape.pages(48, made.runner.preparer.page)
    runner = GraphRunner(old.worker, old.preparer, buckets(batch), len(made.scheduler.pools), width, capture=False)
    seen, generations = list[int](), runner.generations

    def spy(requests: list[object]) -> object:
        seen.append(len(requests))
        return generations(requests)  # type: ignore[arg-type]

    runner.generations = spy  # type: ignore[method-assign, assignment]
    made.runner = runner
    return made, seen


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_bursts_of_all_sizes(shape: DraftShape) -> None:
    target, _ = near_pair()
    plain, (served, seen) = engine(target, batch=8, max_seq_len=48), padded(shape, 8)
    for burst in BURSTS:
        prompts = [[(3 * i + burst) % 16] * (1 + i) for i in range(burst)]
        asked = [{"max_new_tokens": 3 + 4 * i, "seed": i, "temperature": float(i % 2)} for i in range(burst)]
        found, want = serve(served, prompts, asked), serve(plain, prompts, asked)
        assert [t.tokens for t in found] == [t.tokens for t in want]
        assert any(n for t in found for n in t.accepted)
    assert {3, 5, 6, 7} <= set(seen), "steps that were padded"
    assert max(seen) == 8


def test_every_batch_has_a_size_and_none_is_larger_than_the_largest_batch() -> None:
    for most in range(1, 300):
        sizes = buckets(most)
        assert sizes == sorted(set(sizes))
        assert (sizes[0], sizes[-1]) == (1, most)
        for count in range(1, most + 1):
            assert min(size for size in sizes if size >= count) < 2 * count
    assert buckets(33) == [1, 2, 4, 8, 16, 32, 33]


@pytest.mark.parametrize("batch", [1, 6, 33])
def test_buffers_hold_the_largest_padded_step(batch: int) -> None:
    shape = SHAPES["chain"]
    served, _ = padded(shape, batch)
    runner = served.runner
    assert isinstance(runner, GraphRunner)
    assert runner._stage.shape[0] == runner.buckets[-1] == batch
    spec = runner.worker.spec
    assert spec is not None
    assert len(spec.capture.hidden) >= batch * shape.nodes
    prompts = [[1 + i % 15] for i in range(batch)]
    assert [len(t.tokens) for t in serve(served, prompts, [{"max_new_tokens": 5}] * batch)] == [5] * batch
