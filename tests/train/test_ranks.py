"""Two ranks on the CPU: the same head as one, and one line where a rank dies."""

import os
import signal
import socket
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eagle3.config.load import compose
from eagle3.train.run import train_head
from helpers.trained import write_near

Process = subprocess.Popen[str]


def start(overrides: list[str], folder: Path) -> list[Process]:
    """What torchrun starts, without its agent."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = []
    for rank in range(2):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        env = os.environ | place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "eagle3", "train", *overrides, f"hydra.run.dir={folder / str(rank)}"]
        piped = subprocess.PIPE
        made.append(subprocess.Popen(command, cwd=folder, env=env, stdout=piped, stderr=piped, text=True))
    return made


def finish(processes: list[Process]) -> list[tuple[int, str, str]]:
    try:
        told = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(processes, told, strict=True)]


@pytest.mark.parametrize("features", [False, True])
def test_two_ranks_make_the_head_of_one(tmp_path: Path, features: bool) -> None:
    near = [*write_near(tmp_path, count=12, new=12), "train.batch_size=1", "train.seq_len=40", "train.max_steps=4"]
    stored = [f"train.features={tmp_path / 'features'}"] * features
    both = finish(start([*near, *stored, f"train.out={tmp_path / 'two'}", "--json"], tmp_path))
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
def test_a_dead_rank_ends_the_other_with_a_line(tmp_path: Path, how: signal.Signals) -> None:
    near = [*write_near(tmp_path, count=12, new=12), "train.epochs=2000", "train.save_every=2", "train.timeout=60"]
    processes = start([*near, f"train.out={tmp_path / 'head'}"], tmp_path)
    try:
        waited = time.monotonic()
        while not (tmp_path / "head" / "config.json").exists():
            assert time.monotonic() < waited + 100
            assert processes[0].poll() is None
            time.sleep(0.1)
    finally:
        processes[1].send_signal(how)
    (code, _, err), (other, _, said) = finish(processes)
    assert code == 1
    assert "RunError: rank 0: another rank is gone" in err
    assert "Traceback" not in err + said
    if how is signal.SIGTERM:
        assert other == 1
        assert "RunError: rank 1: ended by SIGTERM" in said
