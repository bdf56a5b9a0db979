"""Runs that stop and go on, folders that are another run's, disks and gradients that fail."""

import json
import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3.config.load import compose
from eagle3.errors import ConfigError, Eagle3Error, RunError, WeightError
from eagle3.train import resume, trainer
from eagle3.train.run import Told, train_head
from eagle3.train.trainer import Figures
from helpers.trained import write_near

SHORT = [
    "train.epochs=4",
    "train.log_every=1",
    "train.save_every=3",
    "train.batch_size=1",
    "train.accumulate=2",
    "train.seq_len=40",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*write_near(tmp_path_factory.mktemp("near"), count=12, new=12), *SHORT]


Train = Callable[..., Told]


@pytest.fixture(scope="module")
def whole(made: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Told]]:
    """The folder of a run that nothing stopped, and what it told, by its type."""

    @cache
    def run(dtype: str) -> tuple[Path, Told]:
        folder = tmp_path_factory.mktemp("whole")
        return folder, train_head(compose([*made, f"train.dtype={dtype}", f"train.out={folder}"]), lambda _: None)

    return run


@pytest.fixture
def train(made: list[str], tmp_path: Path) -> Train:
    def run(*overrides: str, tell: Callable[[Figures], None] = lambda _: None) -> Told:
        return train_head(compose([*made, f"train.out={tmp_path / 'head'}", *overrides]), tell)

    return run


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


def checkpoints(folder: Path) -> list[str]:
    return sorted((path.name for path in (folder / "checkpoints").iterdir()), key=int)


def stop_at(update: int) -> Callable[[Figures], None]:
    def tell(now: Figures) -> None:
        if now.update == update:
            os.kill(os.getpid(), signal.SIGINT)

    return tell


def killed_at(update: int) -> Callable[[Figures], None]:
    def tell(now: Figures) -> None:
        if now.update == update:
            raise SystemExit(9)

    return tell


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize(
    ("stop", "fault", "kept"),
    [(stop_at(4), KeyboardInterrupt, ["3", "5"]), (killed_at(5), SystemExit, ["3"])],
    ids=["Ctrl-C", "killed"],
)
def test_a_run_that_goes_on_has_the_same_bits(
    train: Train,
    whole: Callable[[str], tuple[Path, Told]],
    tmp_path: Path,
    stop: Callable[[Figures], None],
    fault: type[BaseException],
    kept: list[str],
    dtype: str,
) -> None:
    kind = f"train.dtype={dtype}"
    untouched, told = whole(dtype)
    assert told.summary.updates > 6
    with pytest.raises(fault):
        train(kind, tell=stop)
    folder = tmp_path / "head"
    assert checkpoints(folder) == kept
    if fault is KeyboardInterrupt:
        assert load_file(folder / "model.safetensors"), "Ctrl-C leaves a head too"
    (folder / "checkpoints" / "99.part").mkdir()  # what a kill in mid-write leaves

    again = train(kind, "train.keep=3").summary

    once = told.summary
    assert (again.updates, again.tokens, again.score) == (once.updates, once.tokens, once.score)
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, untouched))
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    assert records(folder) == records(untouched), "nothing twice, nothing left out"


def test_the_last_checkpoints_are_kept(train: Train, tmp_path: Path) -> None:
    done = train().summary
    every = [*range(3, done.updates, 3), done.updates]
    assert checkpoints(tmp_path / "head") == [str(n) for n in every[-2:]]
    assert done.score.tau > 1
    assert train().summary.score == done.score, "a run that is done says so again"


@pytest.mark.parametrize(
    ("change", "said"),
    [("train.lr=0.02", "train.lr 0.01 there, 0.02 here"), ("train.resume=false", "train.resume=true goes on")],
)
def test_another_run_is_refused(train: Train, change: str, said: str) -> None:
    train("train.max_steps=1")
    with pytest.raises(ConfigError, match=said):
        train("train.max_steps=1", change)


def test_a_second_run_waits_for_the_end_of_the_first(train: Train) -> None:
    refused: list[ConfigError] = []

    def meanwhile(now: Figures) -> None:
        if now.update == 1:
            with pytest.raises(ConfigError, match=r"train\.out: in use by another run") as told:
                train("train.max_steps=2")
            refused.append(told.value)

    assert train("train.max_steps=2", tell=meanwhile).summary.updates == 2
    assert len(refused) == 1
    assert train("train.max_steps=2").summary.already, "the lock is gone with the first run"


def test_a_file_system_without_locks_is_a_warning(
    train: Train, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(resume.fcntl, "flock", flock)
    assert train("train.max_steps=1").summary.updates == 1
    assert "cannot be locked: Function not implemented" in caplog.text


def test_a_folder_of_something_else_is_refused(train: Train, tmp_path: Path) -> None:
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="no run of train"):
        train()
    assert [path.name for path in (tmp_path / "head").iterdir()] == ["thesis.tex"]
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        train(f"train.out={tmp_path / 'file'}")


def test_a_full_disk_leaves_the_earlier_checkpoint(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = torch.save, []

    def save(state: object, file: Any) -> None:
        calls.append(file)
        if len(calls) > 1:
            file.write(b"half of it")
            raise OSError(28, "No space left on device")
        real(state, file)

    monkeypatch.setattr(resume.torch, "save", save)
    with pytest.raises(RunError, match=r"6 cannot be written: No space left on device; the last checkpoint is \S+/3"):
        train()
    assert checkpoints(tmp_path / "head") == ["3"]
    monkeypatch.undo()
    assert train().summary.updates > 6


def test_a_gradient_that_is_not_finite_names_update_and_key(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = trainer.rate
    monkeypatch.setattr(trainer, "rate", lambda cfg, update, n: float("nan") if update == 4 else real(cfg, update, n))
    said = r"update 6: the gradient is not finite; lower train.lr \(0.01\); the last checkpoint is \S+/3"
    with pytest.raises(RunError, match=said):
        train("train.log_every=100", "train.save_every=3")
    assert checkpoints(tmp_path / "head") == ["3"]
    assert torch.isfinite(load_file(tmp_path / "head" / "model.safetensors")["fc.weight"]).all()


def test_a_checkpoint_that_cannot_be_read_is_named(train: Train, tmp_path: Path) -> None:
    train("train.max_steps=1")
    (tmp_path / "head" / "checkpoints" / "1" / "state.pt").write_bytes(b"PK\x03\x04 not a state")
    with pytest.raises(WeightError, match="remove the folder"):
        train("train.max_steps=1")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["train.data=null"], "train.data: needs a folder"),
        (["train.out=null"], "train.out: needs a folder"),
        (["train.data=/nowhere"], "eagle3 data"),
        (["train.seq_len=200"], r"not be above runtime.max_seq_len \(128\)"),
        (
            ["train.seq_len=16", "train.long_samples=refuse"],
            "sample .+ of train has .. tokens; train.long_samples=skip",
        ),
        (["train.seq_len=4"], "no sample of train fits"),
        (["train.draft_vocab_size=17"], r"\[1, 16\]"),
        (["train.layers_to_capture=[7]"], "train.layers_to_capture: .*outside 0…3"),
        (["train.layers_to_capture=null", "spec.layers_to_capture=null"], "train.layers_to_capture: must be given"),
    ],
)
def test_faults_of_the_user_are_a_line(train: Train, changes: list[str], said: str) -> None:
    with pytest.raises(Eagle3Error, match=said) as told:
        train(*changes)
    assert not isinstance(told.value, RunError)
    assert "\n" not in str(told.value)


def test_samples_that_are_too_long_are_counted(train: Train) -> None:
    done = train("train.seq_len=18", "train.max_steps=1")
    assert 0 < done.skipped < 12
    assert done.samples == 12 - done.skipped


def test_a_frozen_output_head_is_the_targets_rows(train: Train, tmp_path: Path, made: list[str]) -> None:
    train("train.lm_head=frozen", "train.draft_vocab_size=9", "train.max_steps=2")
    got = load_file(tmp_path / "head" / "model.safetensors")
    target = next(o.partition("=")[2] for o in made if o.startswith("target.checkpoint"))
    rows = load_file(Path(target) / "model.safetensors")["lm_head.weight"]
    assert torch.equal(got["lm_head.weight"], rows[got["d2t"] + torch.arange(9)])
