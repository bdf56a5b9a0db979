import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle3.ops import streams
from eagle3.ops.streams import Stream, block_rows, candidates, chosen, key, save, table, tune, usual


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tuned" / "gpu.json"
    monkeypatch.setattr(streams, "tuned_file", lambda device: path)
    table.cache_clear()
    yield path
    table.cache_clear()


def test_the_fastest_is_kept_on_disk_and_measured_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [torch.zeros(96, 256, dtype=torch.bfloat16) for _ in range(2)]
    ran: list[Stream | None] = []
    fast = candidates(5, gated=False)[2]

    def clock(calls: list) -> float:
        for call in calls:
            call()
        return 1.0 if ran[-1] == fast else 2.0

    def run(x: Tensor, weight: Tensor, stream: Stream | None) -> None:
        assert x.shape == (5, 256)
        ran.append(stream)

    monkeypatch.setattr(streams, "graph_us", clock)
    assert tune(weights, 5, run, gated=False)
    assert len(ran) == 2 * (1 + len(candidates(5, gated=False)))
    assert chosen(5, weights[0], gated=False) == fast
    assert chosen(32, weights[0], gated=False) == fast  # the same tokens a program
    assert chosen(33, weights[0], gated=False) == usual(33, 96, 256, gated=False) != fast
    save(weights[0].device)
    table.cache_clear()  # a second start
    before = len(ran)
    assert not tune(weights, 7, run, gated=False)
    assert len(ran) == before
    assert chosen(7, weights[0], gated=False) == fast


def test_the_library_may_win(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.zeros(96, 256, dtype=torch.float16)
    times = iter([1.0, *[2.0] * 20])
    monkeypatch.setattr(streams, "graph_us", lambda calls: next(times))
    assert tune([weight], 64, lambda *_: None, gated=False)
    save(weight.device)
    table.cache_clear()
    assert chosen(64, weight, gated=False) is None
    assert json.loads(file.read_text()) == {key(64, weight, gated=False): None}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 3}', '{"a": [1, 2]}', '{"a": [1, 2, 3, 4, 5, "x"]}'])
def test_an_unreadable_table_counts_as_none(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    assert table(torch.device("cpu")) == {}


def test_many_rows_wide_types_and_odd_weights_are_the_librarys(file: Path) -> None:
    assert chosen(129, torch.zeros(64, 256, dtype=torch.bfloat16), gated=False) is None
    assert chosen(1, torch.zeros(64, 256), gated=False) is None
    assert chosen(1, torch.zeros(64, 96, dtype=torch.bfloat16), gated=True) is None


def test_a_choice_fits_its_rows() -> None:
    assert [block_rows(n) for n in (1, 32, 33, 64, 65, 128, 500)] == [32, 32, 64, 64, 128, 128, 128]
    for count in (1, 60, 128):
        for gated in (False, True):
            assert all(c.rows == block_rows(count) for c in candidates(count, gated=gated))
            assert all(not gated or c.splits == 1 for c in candidates(count, gated=gated))
