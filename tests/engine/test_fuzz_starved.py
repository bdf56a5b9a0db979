"""Mixes of requests of all kinds through pools too small for them, with aborts: each gets what it gets alone."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from test_mixed import Wanted, serve_mixed

from eagle3.engine.engine import Engine, Result
from eagle3.kv.pages import Pages
from eagle3.spec import worker
from eagle3.spec.adjust import Adjustments
from helpers.letters import Letters
from helpers.matrix import SHAPES, models
from helpers.pairs import PLAIN, SMALL, engine
from helpers.trace import assert_at_rest

KINDS = {"plain": PLAIN} | {name: SHAPES[name] for name in ("chain1", "chain3", "tree2-3-6", "tree4-4-16")}
ENDS, POOL = frozenset({3, 7}), 40
STOPS = (["e", "a"], ["\n", "b c", "x"], ["好", "h", "x!"], ["fg ", "b", "ba"])


@dataclass(frozen=True)
class Mix:
    """What a seed stands for."""

    seed: int
    shape: str
    page: int
    batch: int
    chunk: int
    joint: bool
    requests: tuple[int, ...]
    aborted: frozenset[int]  # places in `requests`

    @classmethod
    def of(cls, seed: int) -> "Mix":
        rng = random.Random(seed)
        requests = tuple(rng.sample(range(POOL), rng.randint(2, 3)))
        return cls(
            seed,
            rng.choice([*KINDS, "tree2-3-6", "chain3"]),
            rng.choice([1, 2, 4, 8]),
            rng.randint(2, 5),
            rng.choice([2, 5, 40]),
            rng.random() < 0.5,
            requests,
            frozenset(i for i in range(len(requests)) if rng.random() < 0.12),
        )


@cache
def request(i: int) -> Wanted:
    """One of the requests that mixes are made of."""
    rng = random.Random(1000 + i)
    asked: dict[str, Any] = {"max_new_tokens": rng.randint(2, 8), "seed": i, "temperature": rng.choice([0, 0.8, 1.3])}
    options: dict[str, tuple[object, ...]] = {
        "top_p": (0.8,),
        "top_k": (3, 5),
        "stop": STOPS,
        "stop_token_ids": ([rng.randrange(16)],),
        "ignore_eos": (True,),
        "min_new_tokens": (rng.randint(1, asked["max_new_tokens"]),),
        "presence_penalty": (1.0, -0.5),
        "frequency_penalty": (0.7,),
        "repetition_penalty": (1.5, 0.8),
        "logprobs": (0, 2),
    }
    asked |= {name: rng.choice(values) for name, values in options.items() if rng.random() < 0.3}
    return [rng.randrange(16) for _ in range(rng.choice([1, 3, 7]))], asked


@cache
def alone(i: int) -> Result:
    """What a request gets from the target alone, with all the room there is."""
    built = engine(models("near", 2)[0], ends=ENDS, tokenizer=Letters(), batch=1, max_seq_len=32)
    prompt, asked = request(i)
    return built.generate([prompt], [asked])[0]


def starved(mix: Mix) -> Engine:
    """Room for the largest of its requests, and not much more."""
    target, head = models("near", 2)
    shape = KINDS[mix.shape]
    largest = max(len(prompt) + asked["max_new_tokens"] for prompt, asked in map(request, mix.requests))
    tokens = shape.entries(largest) + shape.path + shape.reserve + mix.page
    how: dict[str, Any] = {"page": mix.page, "batch": mix.batch, "chunk": mix.chunk, "tokens": tokens}
    draft = (head, SMALL) if shape.depth else None
    return engine(target, draft, shape, joint=mix.joint, max_seq_len=32, ends=ENDS, tokenizer=Letters(), **how)


def ended(built: Engine) -> dict[int, Result]:
    """Results by place in the mix, as requests leave."""
    found: dict[int, Result] = {}
    leave: Callable[[Any], Result] = built._leave

    def watched(request: Any) -> Result:
        result = leave(request)
        found[int(result.request_id)] = result
        return result

    built._leave = watched  # type: ignore[method-assign]
    return found


def check(mix: Mix) -> Counter[str]:
    """Serve a mix; what came up in it."""
    built = starved(mix)
    found = ended(built)
    _, preemptions = serve_mixed(built, [request(i) for i in mix.requests], set(mix.aborted))
    assert_at_rest(built)
    assert sorted(found) == list(range(len(mix.requests))), f"{mix}: a request is lost"
    seen = Counter({"preempted": preemptions > 0, mix.shape: 1})
    for place, i in enumerate(mix.requests):
        own, want = found[place], alone(i)
        if own.finish_reason == "abort":
            assert own.token_ids == want.token_ids[: len(own.token_ids)], f"{mix}: request {place} says otherwise"
            seen["aborted"] += 1
            continue
        told = [(r.token_ids, r.text, r.finish_reason, r.stopped_by) for r in (own, want)]
        assert told[0] == told[1], f"{mix}: request {place} says otherwise"
        assert _same_logprobs(own, want), f"{mix}: request {place} has other log-probabilities"
        seen.update(name for name in request(i)[1])
        seen["stopped"] += own.stopped_by is not None
    return seen


def _same_logprobs(own: Result, want: Result) -> bool:
    if own.logprobs is None or want.logprobs is None:
        return own.logprobs is want.logprobs
    ours, theirs = ([[(one.token_id, one.logprob), *one.top] for one in r.logprobs or ()] for r in (own, want))
    flat = [[pair for row in rows for pair in row] for rows in (ours, theirs)]
    ids, values = ([[pair[k] for pair in pairs] for pairs in flat] for k in (0, 1))
    return len(ours) == len(own.token_ids) and ids[0] == ids[1] and values[0] == pytest.approx(values[1])


def test_100_starved_mixes() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100):
        seen += check(Mix.of(seed))
    assert min(seen[name] for name in KINDS) >= 5
    assert min(seen[name] for name in ("stop", "min_new_tokens", "presence_penalty", "repetition_penalty")) >= 20
    assert min(seen[name] for name in ("frequency_penalty", "logprobs", "top_k", "stop_token_ids")) >= 20
    assert min(seen["preempted"], seen["aborted"], seen["stopped"]) >= 20, seen


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(1, 10))
def test_1000_starved_mixes(part: int) -> None:
    for seed in range(100 * part, 100 * part + 100):
        check(Mix.of(seed))


def pages_of_two(patcher: pytest.MonkeyPatch) -> None:
    sound = Pages.release

    def twice(self: Pages, owned: list[int]) -> None:
        last = owned[-1:]
        sound(self, owned)
        self._free.extend(last)

    patcher.setattr(Pages, "release", twice)


def no_relocation(patcher: pytest.MonkeyPatch) -> None:
    patcher.setattr(worker, "relocate_kv", lambda *_: None)


def never_counted(patcher: pytest.MonkeyPatch) -> None:
    patcher.setattr(Adjustments, "advance", lambda *_: None)


@pytest.mark.parametrize("fault", [pages_of_two, no_relocation, never_counted])
def test_a_fault_is_seen(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        [check(Mix.of(seed)) for seed in range(60)]
