"""Hundreds of mixed requests through one engine, small pools, aborts in flight: nothing is lost."""

import random
import resource
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from helpers.pairs import SMALL, engine, near_pair
from helpers.trace import assert_at_rest, watch

Wanted = tuple[list[int], dict[str, Any]]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def requests(n: int) -> list[Wanted]:
    """Prompts and outputs mostly short, a few up to 500 together; greedy and sampled, with and without stops."""
    rng = random.Random(5)
    wanted = []
    for i in range(n):
        prompt, new = rng.randint(1, 20), rng.randint(1, 12)
        if i % 100 == 50:
            prompt, new = 500, 10
        if i % 100 == 90:
            prompt, new = 5, 200
        sampling: dict[str, Any] = {"max_new_tokens": new, "seed": i, "temperature": rng.choice([0.0, 0.0, 0.8, 1.2])}
        if rng.random() < 0.3:
            sampling["top_p"] = 0.9
        if rng.random() < 0.3:
            sampling["stop_token_ids"] = [rng.randrange(16)]
        wanted.append(([rng.randrange(16) for _ in range(prompt)], sampling))
    return wanted


def drafting(shape: DraftShape, joint: bool) -> Engine:
    target, head = near_pair()
    return engine(target, (head, SMALL), shape, page=4, batch=16, max_seq_len=520, chunk=40, tokens=560, joint=joint)


def serve_mixed(built: Engine, wanted: list[Wanted], aborted: set[int]) -> tuple[dict[int, list[int]], int]:
    """Outputs by index, and preemptions; requests arrive in waves, and some leave three steps after they came."""
    traces, queue, leaving = watch(built), list(enumerate(wanted)), []
    results, steps = {}, 0
    while queue or not built.idle:
        for i, (prompt, sampling) in queue[:5]:
            built.add(prompt, request_id=str(i), **sampling)
            if i in aborted:
                leaving.append((steps + 3, str(i)))
        queue = queue[5:]
        for event in built.step():
            if event.result:
                results[int(event.request_id)] = event.result.token_ids
        steps += 1
        for at, name in list(leaving):
            if at <= steps:
                leaving.remove((at, name))
                if int(name) not in results:
                    results[int(name)] = built.abort(name).token_ids
    return results, sum(t.preemptions for t in traces.values())


@cache
def plain_outputs(n: int) -> list[list[int]]:
    target, _ = near_pair()
    built = engine(target, batch=64, max_seq_len=520, page=16)
    return [r.token_ids for r in built.generate(*map(list, zip(*requests(n), strict=True)))]


def check(n: int, shape: DraftShape, joint: bool) -> None:
    wanted, aborted = requests(n), set(range(7, n, 20))
    plain = plain_outputs(max(n, 300))[:n]
    built = drafting(shape, joint)
    found, preemptions = serve_mixed(built, wanted, aborted)
    assert sorted(found) == list(range(n))
    for i, tokens in enumerate(plain):
        if i in aborted:
            assert found[i] == tokens[: len(found[i])]
        else:
            assert found[i] == tokens, i
    assert any(len(found[i]) < len(plain[i]) for i in aborted)
    assert preemptions > 0
    assert_at_rest(built)


@pytest.mark.parametrize(
    ("shape", "joint"),
    [(DraftShape(3, 1, 4), True), (DraftShape(3, 3, 9), False)],
    ids=["chain-joint", "tree-separate"],
)
def test_300_mixed_requests(shape: DraftShape, joint: bool) -> None:
    check(300 if shape.top_k > 1 else 100, shape, joint)


@pytest.mark.exhaustive
@pytest.mark.parametrize("joint", [False, True])
def test_2000_mixed_requests(joint: bool) -> None:
    check(2000, DraftShape(3, 3, 9), joint)


def test_memory_is_flat() -> None:
    built = drafting(DraftShape(3, 3, 9), joint=False)
    wanted = [([1 + i % 15, 2, 3], {"max_new_tokens": 6, "seed": i}) for i in range(60)]
    peaks = []
    for _ in range(3):
        serve_mixed(built, wanted, set())
        assert_at_rest(built)
        assert not built._requests
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert peaks[2] - peaks[1] < 4 * 1024  # KiB
