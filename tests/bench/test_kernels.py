"""The attention kernel alone: what is timed, and against what."""

from dataclasses import replace

import pytest
import torch

from eagle3.bench import kernels
from eagle3.bench.floor import PEAKS
from eagle3.bench.kernels import BETWEEN, CALLS, Case, binary_tree, calls, cases, time_kernels, timed
from eagle3.config.load import compose
from eagle3.errors import ConfigError

CPU = torch.device("cpu")
LONG = Case(8, 60, 32768, 32, 1027, 32, 8, 128, None, torch.bfloat16, steady=False)
SMALL = Case(2, 3, 21, 4, 8, 4, 2, 8, None, torch.float64, steady=False)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools no larger than a test needs."""
    monkeypatch.setattr(kernels, "BETWEEN", 1)


def test_the_work_of_a_long_context() -> None:
    load = LONG.load()
    assert load.bytes == 8 * 32768 * 4096, "4 KiB an entry: keys and values of 8 heads"
    assert load.operations == 8 * 4 * 60 * 32768 * 32 * 128
    assert replace(LONG, window=4096).load().bytes == 8 * 4096 * 4096


def test_no_pool_is_in_a_cache_when_its_turn_comes() -> None:
    for case in (LONG, replace(LONG, batch=1), replace(LONG, batch=1, context=512)):
        one = case.pages * case.page * case.entry * 2
        assert (case.copies - 1) * one >= BETWEEN
        assert case.copies == 2 or (case.copies - 2) * one < BETWEEN, "and no more than that takes"


def test_what_a_recipe_times() -> None:
    found = cases(compose(["recipe=h200_attention_32k", "kv.tokens_per_block=32"]), CPU)
    assert [replace(case, dtype=LONG.dtype) for case in found] == [replace(LONG, batch=1), LONG]
    plain = cases(compose(["recipe=h200_attention_32k", "spec=none"]), CPU)
    assert [case.rows for case in plain] == [1, 1]


def test_a_tree_that_does_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"runtime\.max_seq_len: must hold the 16 rows"):
        cases(compose(["conf=tiny", "runtime.max_seq_len=15"]), CPU)


def test_a_tree_of_two_words() -> None:
    depth, mask = binary_tree(34)
    seen = [{c for c in range(34) if mask[row, c // 32].item() >> (c % 32) & 1} for row in range(34)]
    assert seen[0] == {0}
    assert seen[33] == {33, 16, 7, 3, 1, 0}, "bit 31 and beyond too"
    assert all(seen[row] == seen[(row - 1) // 2] | {row} for row in range(1, 34))
    assert depth.tolist() == [len(path) - 1 for path in seen]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("rows", [1, 3])
def test_each_call_is_attention_over_its_own_pool(rows: int) -> None:
    case = replace(SMALL, rows=rows)
    made = calls(case, CPU)
    assert len(made) == CALLS
    assert made[0].args[1].data_ptr() != made[1].args[1].data_ptr()  # type: ignore[attr-defined]
    q, kv = made[1].args  # type: ignore[attr-defined]
    table = made[1].keywords["table"]  # type: ignore[attr-defined]
    assert sorted(table[:, :6].flatten().tolist()) == list(range(1, 13)), "every page belongs to one request"
    out = made[1]().view(case.batch, rows, case.heads, case.head_dim)
    q = q.view_as(out)
    hidden = {0: {1, 2}, 1: {2}, 2: {1}}  # of the tail's columns, by row: nodes 1 and 2 hang below node 0
    for b in range(case.batch):
        entries = kv[table[b, :6].long()].flatten(0, 1)[: case.context].view(case.context, 2, case.kv_heads, -1)
        for row in range(rows):
            last = case.context - rows
            seen = [e for e in range(case.context) if e - last not in hidden[row] or rows == 1]
            for head in range(case.heads):
                k, v = entries[seen][:, :, head // 2].unbind(1)
                want = torch.softmax(k @ q[b, row, head] * case.head_dim**-0.5, 0) @ v
                torch.testing.assert_close(out[b, row, head], want)


@pytest.mark.usefixtures("few")
def test_time_and_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "graph_us", lambda given, replays: [float(len(calls)) for calls in given])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    half = replace(SMALL, dtype=torch.bfloat16)
    found = timed(half, CPU)
    assert found.us == CALLS
    assert found.floor_us == pytest.approx(1e6 * half.load().bytes / PEAKS["NVIDIA H200"].bytes_s)
    assert timed(SMALL, CPU).floor_us is None, "peaks are those of 16 bits"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU that nobody measured")
    assert timed(half, CPU).floor_us is None


def test_without_a_gpu() -> None:
    with pytest.raises(ConfigError, match="--kernels: wants a GPU"):
        time_kernels(compose(["conf=tiny", "runtime.device=cpu"]))
