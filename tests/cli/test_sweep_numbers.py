"""What jobs of `generate` and `train` tell a sweep's table."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.cli import main
from helpers.cycle_files import write_cycle
from helpers.trained import write_near

JOBS = "hydra.sweep.dir=jobs"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def results() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(Path("jobs").glob("*/result.json"))]


def test_generate(tmp_path: Path, capsys: Capture) -> None:
    pair = write_cycle(tmp_path / "pair")
    shape = ["spec=chain", "spec.max_draft_len=3", "sampling.max_new_tokens=9"]
    force = "spec.synthetic_acceptance=null,2"
    assert main(["generate", "-m", *pair, *shape, force, JOBS, "--prompt-ids", "20"]) == 0
    earned, forced = results()
    assert earned["numbers"] == {"output_throughput": earned["value"], "tau": 4.0}
    assert (earned["acceptance_valid"], forced["acceptance_valid"]) == (True, False)
    assert "(not valid)" in capsys.readouterr().err


def test_train(tmp_path: Path, capsys: Capture) -> None:
    near = write_near(tmp_path / "near", count=8)
    outs = "train.out=one,two"
    assert main(["train", "-m", *near, outs, JOBS, "train.max_steps=1", "train.batch_size=1", "--json"]) == 0
    for told, printed in zip(results(), map(json.loads, capsys.readouterr().out.splitlines()), strict=True):
        assert told["numbers"] == {"tau": printed["tau"], "loss": printed["loss"][0]}
        assert told["value"] == printed["tau"]
        assert told["overrides"] == printed["overrides"]
