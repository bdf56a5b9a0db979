import json
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle3.ops import streams
from eagle3.ops.streams import (
    Stream,
    block_rows,
    candidates,
    chosen,
    key,
    save,
    shared_bytes,
    steady_stream,
    table,
    tune,
    usual,
)


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

    def clock(options: list) -> list[float]:
        times = []
        for calls in options:
            for call in calls:
                call()
            times.append(1.0 if ran[-1] == fast else 2.0)
        return times

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
    monkeypatch.setattr(streams, "graph_us", lambda options: [1.0, *[2.0] * (len(options) - 1)])
    assert tune([weight], 64, lambda *_: None, gated=False)
    save(weight.device)
    table.cache_clear()
    assert chosen(64, weight, gated=False) is None
    assert json.loads(file.read_text()) == {key(64, weight, gated=False): None}


DAMAGED = [
    "", "[]", "{", '{"a": 3}', '{"a": [1, 2]}', '{"a": [1, 2, 3, 4, 5, "x"]}', '{"a": "123456"}',
    '{"a": [0, 0, 0, 0, 0, 0]}',
    '{"a": [Infinity, 1, 1, 1, 1, 1]}', '{"a": [1e400, 1, 1, 1, 1, 1]}', '{"a": {"1": 1}}', "[" * 200000,
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_what_is_damaged_counts_as_not_there(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    assert table(torch.device("cpu")) == {}


def test_a_damaged_row_spares_the_others(file: Path) -> None:
    good, gated = candidates(60, gated=False)[1], candidates(8, gated=True)[0]
    rows = {
        "8x8 x 64": astuple(good),
        "gated 8x8 x 32": astuple(gated),
        "9x9 x 32": None,
        "bad 64": [64, 3, 3, 3, 3, 3],
    }
    rows["8x8 x 32"] = astuple(good)  # of another number of tokens
    file.parent.mkdir()
    file.write_text(json.dumps(rows))
    assert table(torch.device("cpu")) == {"8x8 x 64": good, "gated 8x8 x 32": gated, "9x9 x 32": None}


def test_saving_keeps_what_others_found_meanwhile(file: Path) -> None:
    device, ours, theirs = torch.device("cpu"), candidates(1, gated=False)[0], candidates(64, gated=False)[0]
    table(device)["a 32"] = ours
    file.parent.mkdir()
    file.write_text(json.dumps({"b 64": astuple(theirs)}))
    save(device)
    table.cache_clear()
    assert table(device) == {"a 32": ours, "b 64": theirs}


def test_a_folder_that_cannot_be_written_is_a_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.parent.write_text("a file")
    table(torch.device("cpu"))["a 32"] = None
    save(torch.device("cpu"))
    assert "the next start tunes again" in caplog.text


def test_a_gpu_with_little_shared_memory_gets_what_fits(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.zeros(4096, 4096, dtype=torch.bfloat16), torch.zeros(1, 4096, dtype=torch.bfloat16)
    assert chosen(1, weight, gated=False) == usual(1, 4096, 4096, gated=False) is not None
    wide = steady_stream(x, gated=False)
    monkeypatch.setattr(streams, "shared_memory", lambda device: 99 * 1024)
    assert chosen(1, weight, gated=False) is None
    measured = []
    monkeypatch.setattr(streams, "graph_us", lambda options: measured.extend(options) or [1.0] * len(options))
    assert tune([weight], 1, lambda *_: None, gated=False)
    assert 1 < len(measured) < 1 + len(candidates(1, gated=False))
    for gated in (False, True):
        assert shared_bytes(steady_stream(x, gated=gated), gated=gated) <= 99 * 1024
    assert steady_stream(x, gated=False) != wide


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
