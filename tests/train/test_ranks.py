"""Two ranks on the CPU: the same head as one, and one line where a rank dies."""

import os
import signal
import socket
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eagle3.config.load import compose
from eagle3.train.run import train_head
from helpers.forked import Forks
from helpers.trained import write_near


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_near(tmp_path_factory.mktemp("near"), count=12, new=12)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


def start(forks: Forks, overrides: list[str], folder: Path) -> list[int]:
    """What torchrun starts, without its agent."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        forks.start(
            ["train", *overrides, f"hydra.run.dir={folder / rank}"],
            both | {"RANK": rank, "LOCAL_RANK": rank},
            folder,
            f"rank{rank}",
        )
        for rank in ("0", "1")
    ]


def finish(forks: Forks, ranks: list[int], folder: Path) -> list[tuple[int, str, str]]:
    """Exit codes, stdout and stderr; processes that are still there after two minutes are killed."""

    def end() -> None:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)

    watch = threading.Timer(120, end)
    watch.start()
    codes = [forks.finish(rank) for rank in ranks]
    watch.cancel()
    told = [[(folder / f"rank{i}.{end}").read_text() for end in ("out", "err")] for i in range(2)]
    return [(code, out, err) for code, (out, err) in zip(codes, told, strict=True)]


@pytest.mark.parametrize("features", [False, True])
def test_two_ranks_make_the_head_of_one(forks: Forks, near: list[str], tmp_path: Path, features: bool) -> None:
    near = [*near, "train.batch_size=1", "train.seq_len=40", "train.max_steps=4"]
    stored = [f"train.features={tmp_path / 'features'}"] * features
    both = finish(forks, start(forks, [*near, *stored, f"train.out={tmp_path / 'two'}", "--json"], tmp_path), tmp_path)
    assert [code for code, _, _ in both] == [0, 0], both
    assert "tau" in both[0][1]
    assert not both[1][1], "only the first rank tells"
    if features:
        written = array("q", (tmp_path / "features" / "done.bin").read_bytes())
        assert sorted(written) == list(range(20)), "each sample by one rank"
    one = train_head(compose([*near, f"train.out={tmp_path / 'one'}", "train.accumulate=2"]), lambda _: None)
    assert one.summary.updates == 4
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "one"))
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, atol=1e-10, rtol=0), name


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_rank_ends_the_other_with_a_line(
    forks: Forks, near: list[str], tmp_path: Path, how: signal.Signals
) -> None:
    near = [*near, "train.epochs=2000", "train.save_every=2", "train.timeout=60"]
    processes = start(forks, [*near, f"train.out={tmp_path / 'head'}"], tmp_path)
    try:
        waited = time.monotonic()
        while not (tmp_path / "head" / "config.json").exists():
            assert time.monotonic() < waited + 100, (tmp_path / "rank0.err").read_text()
            time.sleep(0.1)
    finally:
        os.kill(processes[1], how)
    (code, _, err), (other, _, said) = finish(forks, processes, tmp_path)
    assert code == 1
    assert "RunError: rank 0: another rank is gone" in err
    assert "Traceback" not in err + said
    if how is signal.SIGTERM:
        assert other == 1
        assert "RunError: rank 1: ended by SIGTERM" in said
