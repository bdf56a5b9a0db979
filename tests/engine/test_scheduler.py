"""The scheduler alone: a made-up device says how many tokens each generation gets."""

import random
from dataclasses import replace

import pytest

from eagle3.config.shape import DraftShape
from eagle3.engine.request import Request, SamplingParams
from eagle3.engine.scheduler import Limits, Plan, Scheduler
from eagle3.errors import CapacityError
from eagle3.kv.pages import Pages

PLAIN = DraftShape(depth=0, top_k=1, nodes=1)
TREE = DraftShape(depth=3, top_k=2, nodes=7)
LIMITS = Limits(max_batch_size=3, max_seq_len=64, max_num_tokens=32, prompt_chunk=8)
GREEDY = SamplingParams(10, 0.0, 0, 1.0, 0.0, 0, frozenset({99}))


def request(name: str, prompt: int, new: int, params: SamplingParams = GREEDY) -> Request:
    params = replace(params, max_new_tokens=new)
    return Request(name, list(range(100, 100 + prompt)), params, prompt_len=prompt, limit=new)


class Device:
    """Emits 0, 1, 2, … for every request, however its steps are cut; knows what a real one would have seen."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.scheduler, self.rng = scheduler, rng
        self.pending: tuple[Plan, list[list[int]], list[list[int]], list[int]] | None = None
        self.said: dict[str, int] = {}  # tokens that the device has emitted for a request, not yet cut
        self.owner: dict[int, str] = {}  # slot -> request, as the device sees it

    def step(self) -> None:
        plan = self.scheduler.schedule()
        self.check(plan)
        P = self.scheduler.shape.path
        prompts, rows, counts = [], [], []
        for slot in plan.restore:
            self.owner.pop(slot, None)
        for chunk in plan.chunks:
            r = chunk.request
            assert r.slot is not None
            assert self.owner.setdefault(r.slot, r.id) == r.id, "a slot is restored before it changes hands"
            first = self.said.get(r.id, 0)
            prompts.append([first] + [0] * (P - 1))
            if chunk.last:  # what is given again counts as said
                self.said[r.id] = r.emitted if r.resumed else first + 1
        for r in plan.generations:
            assert r.slot is not None
            assert self.owner[r.slot] == r.id
            count, first = self.rng.randint(1, P), self.said[r.id]
            rows.append([first + i if i < count else 0 for i in range(P)])
            counts.append(count)
            self.said[r.id] += count
        if self.pending:
            self.scheduler.commit(*self.pending)
        self.pending = (plan, prompts, rows, counts) if plan else None

    def check(self, plan: Plan) -> None:
        s, shape = self.scheduler, self.scheduler.shape
        used = sum(c.end - c.start for c in plan.chunks) + len(plan.generations) * shape.nodes
        assert used <= s.limits.max_num_tokens
        assert all(c.end - c.start <= s.limits.prompt_chunk for c in plan.chunks)
        requests = [c.request for c in plan.chunks] + list(plan.generations)
        assert len({r.slot for r in requests}) == len(requests) <= s.limits.max_batch_size
        for i, pool in enumerate(s.pools):
            owned = [p for r in s.running for p in r.pages[i]]
            assert len(set(owned)) == len(owned)
            assert 0 not in owned
            assert len(owned) + pool.free == pool.total
        for r in plan.generations:
            # the device may stand at known - 1 + P, and writes up to R entries from there
            reach = len(r.tokens) - 1 + shape.path + shape.reserve
            assert all(len(own) * p.page >= reach for own, p in zip(r.pages, s.pools, strict=True))

    def drain(self, most: int = 10_000) -> None:
        for _ in range(most):
            self.step()
            if not (self.pending or self.scheduler.running or self.scheduler.waiting):
                return
        raise AssertionError("does not end")


def served(shape: DraftShape, pages: int, prompts: list[tuple[int, int]], seed: int = 0) -> list[Request]:
    limits = replace(LIMITS, max_num_tokens=max(LIMITS.max_num_tokens, 3 * shape.nodes))
    scheduler = Scheduler(limits, shape, [Pages(pages, 4)])
    requests = [request(str(i), p, n) for i, (p, n) in enumerate(prompts)]
    for r in requests:
        scheduler.add(r)
    Device(scheduler, random.Random(seed)).drain()
    assert scheduler.pools[0].free == pages
    assert sorted(scheduler._slots) == [0, 1, 2]
    assert sum(r.promised for r in requests) == 0
    return requests


@pytest.mark.parametrize("shape", [PLAIN, TREE], ids=["plain", "tree"])
@pytest.mark.parametrize("pages", [20, 60], ids=["starved", "roomy"])
@pytest.mark.parametrize("seed", range(5))
def test_every_request_gets_its_tokens_in_order(shape: DraftShape, pages: int, seed: int) -> None:
    rng = random.Random(seed)
    prompts = [(rng.randint(1, 30), rng.randint(1, 20)) for _ in range(12)]
    requests = served(shape, pages, prompts, seed)
    assert [r.output for r in requests] == [list(range(n)) for _, n in prompts]
    assert {r.finish_reason for r in requests} == {"length"}


def test_starving_really_preempts() -> None:
    assert sum(r.preemptions for r in served(PLAIN, 20, [(20, 20)] * 3)) > 0
    assert sum(r.preemptions for r in served(PLAIN, 60, [(20, 20)] * 3)) == 0


def test_a_plain_request_runs_no_step_in_vain() -> None:
    scheduler = Scheduler(LIMITS, PLAIN, [Pages(20, 4)])
    scheduler.add(request("a", 8, 3))
    plans = []
    device = Device(scheduler, random.Random(0))
    for _ in range(6):
        device.step()
        plans.append(device.pending is not None)
    assert plans == [True, True, True, False, False, False]  # one prompt chunk, two generations


def test_long_prompts_are_chunked_beside_generations() -> None:
    scheduler = Scheduler(LIMITS, PLAIN, [Pages(40, 4)])
    scheduler.add(request("a", 4, 9))
    scheduler.add(request("b", 20, 1))
    first = scheduler.schedule()
    assert [(c.request.id, c.start, c.end, c.last) for c in first.chunks] == [
        ("a", 0, 4, True),
        ("b", 0, 8, False),
    ]
    second = scheduler.schedule()
    assert [r.id for r in second.generations] == ["a"]
    assert [(c.start, c.end, c.last) for c in second.chunks] == [(8, 16, False)]


def test_abort_frees_everything_and_the_step_in_flight_is_ignored() -> None:
    scheduler = Scheduler(LIMITS, PLAIN, [Pages(40, 4)])
    a, b = request("a", 4, 9), request("b", 4, 9)
    scheduler.add(a)
    scheduler.add(b)
    device = Device(scheduler, random.Random(0))
    for _ in range(3):
        device.step()
    had = list(a.output)
    scheduler.finish(a, "abort")
    device.drain()
    assert a.output == had
    assert b.output == list(range(9))
    assert scheduler.pools[0].free == 40


@pytest.mark.parametrize(
    ("prompt", "new", "key"),
    [(64, 1, "runtime.max_seq_len=64"), (40, 24, "kv.max_tokens"), (70, 1, "runtime.max_seq_len=64")],
)
def test_what_can_never_fit_is_refused_alone(prompt: int, new: int, key: str) -> None:
    scheduler = Scheduler(LIMITS, PLAIN, [Pages(15, 4)])
    with pytest.raises(CapacityError, match=key):
        scheduler.add(request("big", prompt, new))
    small = request("small", 4, 2)
    scheduler.add(small)
    Device(scheduler, random.Random(0)).drain()
    assert small.output == [0, 1]
