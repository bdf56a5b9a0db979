"""Mixed load: what is asked for, what is measured, and that leaks are seen."""

from collections.abc import Sequence
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3.bench.soak import SAMPLINGS, SLACK, Order, Soak, Traffic, Window, orders, soak
from eagle3.engine.engine import Engine, Event
from eagle3.kv.pages import Pages
from helpers.pairs import engine, facts, random_target

MIB = 1 << 20


def small() -> Engine:
    made = engine(random_target(facts(8, layers=2)), batch=2, max_seq_len=60)
    made.config.bench.output_len = 24
    return made


def test_orders_are_mixed_and_always_the_same() -> None:
    made = list(islice(orders(16, 40, 12), 400))
    assert made == list(islice(orders(16, 40, 12), 400))
    assert all(len(o.prompt) >= 1 and len(o.prompt) + o.new <= 40 for o in made)
    assert {1, 2, 3, 4, 8, 16} <= {len(o.prompt) for o in made}
    assert sum(len(o.prompt) + o.new == 40 for o in made) > 10, "some take all that fits"
    assert {o.new for o in made} == set(range(1, 13))
    assert all(o.sampling in SAMPLINGS for o in made)
    assert len({str(o.sampling) for o in made}) == len(SAMPLINGS)
    left = [o for o in made if o.abort_after is not None]
    assert 20 < len(left) < 120
    assert all(o.abort_after in range(o.new) for o in left)
    assert {o.abort_after for o in left} > {0}


def test_a_healthy_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[float] = []
    ticks = count(0, 0.002)  # as many steps on any machine
    monkeypatch.setattr("eagle3.bench.soak.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    found = soak(small(), 2.5, heard.append)
    assert found.failed == []
    assert (found.pages, found.slots) == (True, True)
    assert heard == sorted(heard)
    assert len(heard) == sum(w.steps for w in found.windows)
    for window in found.windows:
        assert window.pages_free == found.pages_total
        assert window.output_tokens > 0
        assert window.finished > 0
    assert sum(w.aborted for w in found.windows) > 0
    assert sum(w.full_steps for w in found.windows) > 0


def test_ctrl_c_ends_it_with_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count(0, 0.002)
    monkeypatch.setattr("eagle3.bench.soak.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    heard = count(1)

    def tell(_: float) -> None:
        if next(heard) == 60:
            raise KeyboardInterrupt

    found = soak(small(), 2.5, tell)
    assert sum(w.steps for w in found.windows) == 60
    assert found.stopped
    assert found.pages_free == found.pages_total
    assert found.windows[-1].aborted > 0
    assert (found.pages, found.slots, found.failed) == (True, None, [])


def test_ctrl_c_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: Traffic) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Traffic, "fill", stop)
    with pytest.raises(KeyboardInterrupt):
        soak(small(), 2.5, lambda _: None)


def test_pages_that_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(self: Pages, owned: list[int]) -> None:
        self._free.extend(owned[1:])
        owned.clear()

    monkeypatch.setattr(Pages, "release", release)
    found = soak(small(), 30, lambda _: None)
    assert found.failed == ["pages"]
    assert found.windows[-1].stalled, "no page is left: it ends long before its time"
    assert found.pages_free < found.pages_total


def test_one_page_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    release, lost = Pages.release, []

    def once(self: Pages, owned: list[int]) -> None:
        lost.append(0 if lost else owned.pop())
        release(self, owned)

    monkeypatch.setattr(Pages, "release", once)
    found = soak(small(), 0.2, lambda _: None)
    assert found.failed == ["pages"]
    assert found.pages_free == [found.pages_total[0] - 1]


class Script:
    """An engine that brings what it is told to."""

    def __init__(self, steps: Sequence[str]) -> None:
        self.steps = iter(steps)
        self.scheduler = SimpleNamespace(limits=SimpleNamespace(max_batch_size=2, max_seq_len=40), pools=[])
        self.vocab = 8
        self.config = SimpleNamespace(bench=SimpleNamespace(output_len=4))

    def step(self) -> list[Event]:
        return [Event(name, [1], [""], None, None) for name in next(self.steps)]


def full_steps(steps: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("eagle3.bench.soak.room", lambda _: 8)
    script: Any = Script(steps)
    traffic = Traffic(script)
    for _ in steps:
        traffic.step()
    return len(traffic.full_ms)


@pytest.mark.parametrize(
    ("steps", "full"),
    [
        (["ab", "ab", "ab", "ab"], 2),  # prompts' tokens first; then two steps follow a full one
        (["a", "b", "ab", "ab"], 1),
        (["ab", "ab", "a", "ab", "ab"], 1),  # not across a step that was not full
        (["abc", "ab", "ac", "ab"], 0),  # full, but never the same requests twice
        (["ab", "ab", "", "ab"], 0),
    ],
)
def test_steps_that_can_be_compared(steps: list[str], full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_steps(steps, monkeypatch) == full


def window(step_ms: float | None = 5.0, reserved: int = 0) -> Window:
    sizes = {"reserved": reserved, "allocated": 0}
    return Window(1.0, 10, step_ms, 4, 100, 5, 1, 0, sizes, [9], stalled=False)


def judged(*windows: Window, pages_free: int = 9, slots_free: int = 2) -> Soak:
    return Soak(list(windows), [9], [pages_free], 2, slots_free)


def test_memory_is_held_against_the_second_window() -> None:
    slack = SLACK["reserved"]
    assert judged(window(), window(reserved=MIB), window(reserved=MIB + slack)).memory is True
    grown = judged(window(reserved=10 * slack), window(reserved=MIB), window(reserved=MIB + slack + 1))
    assert grown.memory is False
    assert grown.failed == ["memory"]
    assert judged(window(), window(reserved=10 * slack)).memory is None, "too short to tell"


def test_drift_is_told_and_not_judged() -> None:
    assert judged(window(None), window(10.0), window(10.2)).drift is True
    slower = judged(window(10.0), window(10.0), window(10.4))
    assert (slower.drift, slower.failed) == (False, [])
    assert judged(window(10.0), window(9.0)).drift is False
    assert judged(window(None), window(10.0)).drift is None
    assert judged(window(10.0), window(None)).drift is None


def test_slots_and_pages_at_the_end() -> None:
    assert judged(window(), slots_free=1).failed == ["slots"]
    assert judged(window(), pages_free=8).failed == ["pages"]


def test_a_cut_window_is_not_judged() -> None:
    grown = window(reserved=10 * SLACK["reserved"])
    cut = Soak([window(), window(), window(), grown], [9], [0], 2, 0, stopped=True)
    assert (cut.pages, cut.slots, cut.memory, cut.failed) == (True, None, True, [])
    assert Soak([window()], [9], [0], 2, 0, stopped=True).pages is None


def test_an_order_that_is_aborted_while_it_waits() -> None:
    made = small()
    traffic = Traffic(made)
    traffic.orders = iter([Order([1] * 3, 4, SAMPLINGS[0], 0)] * (traffic.batch + 2))
    traffic.fill()
    traffic.step()
    assert (traffic.aborted, traffic.tokens, made.idle) == (traffic.batch + 2, 0, True)
    assert [pool.free for pool in made.scheduler.pools] == [pool.total for pool in made.scheduler.pools]
