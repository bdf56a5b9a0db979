"""Features on disk: the same bits as features made anew, made once, of one target; disks and folders that fail."""

import json
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3.config.load import compose
from eagle3.errors import ConfigError, RunError
from eagle3.models.decoder import Decoder
from eagle3.train.features import Features
from eagle3.train.run import Told, train_head
from eagle3.train.samples import read_samples
from eagle3.train.teacher import Teacher
from helpers.pairs import near_pair
from helpers.trained import write_near

SHORT = ["train.epochs=3", "train.log_every=1", "train.batch_size=2", "train.seq_len=40", "train.eval_every=3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*write_near(tmp_path_factory.mktemp("near"), count=12, new=12), *SHORT]


Train = Callable[..., Told]


@pytest.fixture
def train(made: list[str], tmp_path: Path) -> Train:
    def run(*overrides: str, out: str = "head", tell: Callable[..., None] = lambda *_: None) -> Told:
        composed = compose([*made, f"train.out={tmp_path / out}", *overrides])
        return train_head(composed, lambda _: None, None, lambda: nullcontext(tell))

    return run


def stored(folder: Path) -> str:
    return f"train.features={folder / 'features'}"


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["kind"] != "memory"]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in told]


class Passes:
    """Counts the tokens of the target's own passes; `stop` interrupts the pass of that number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.stop: int | None = None
        real = Decoder.forward

        def forward(this: Decoder, ids: torch.Tensor, *args: Any) -> torch.Tensor:
            if self.stop == len(self.sizes):
                raise KeyboardInterrupt
            self.sizes.append(len(ids))
            return real(this, ids, *args)

        monkeypatch.setattr(Decoder, "forward", forward)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_run_that_reads_features_has_the_bits_of_one_that_makes_them(
    train: Train, tmp_path: Path, dtype: str
) -> None:
    kind = f"target.dtype={dtype}"
    plain = train(kind, out="plain").summary
    again = train(kind, stored(tmp_path)).summary
    assert plain.updates > 3
    assert again.score == plain.score
    assert records(tmp_path / "head") == records(tmp_path / "plain")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("head", "plain"))
    for name, value in theirs.items():
        assert value.dtype == getattr(torch, dtype)
        assert torch.equal(ours[name], value), name


def test_the_target_runs_over_each_sample_once(train: Train, tmp_path: Path, passes: Passes) -> None:
    told: list[tuple[str, int, int, int]] = []
    train(stored(tmp_path), tell=lambda *what: told.append(what))
    assert len(passes.sizes) == 20, "twelve samples and the eight that are held out"
    count = len(told)
    assert [(name, every) for name, _, every, _ in told] == [("features", 20)] * count
    assert told[-1][1] == 20
    train(stored(tmp_path), out="other", tell=lambda *what: told.append(what))
    assert len(passes.sizes) == 20
    assert len(told) == count


def test_the_file_holds_what_the_target_says(train: Train, tmp_path: Path, made: list[str]) -> None:
    kept: list[Teacher] = []
    real = Teacher.read

    def read(this: Teacher, store: Any) -> None:
        kept.append(this)
        assert len(this.target.layers) == 4
        real(this, store)
        assert len(this.target.layers) == 0, "its memory is given back"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Teacher, "read", read)
        done = train(stored(tmp_path), "train.max_steps=1")
    parts = done.summary.memory.paper.parts
    assert parts["pass"] == parts["pages"] == 0
    data = Path(next(o.partition("=")[2] for o in made if o.startswith("train.data")))
    samples = {s.ids for split in ("train", "eval") for s in read_samples(data, split)}
    tokens, width = sum(map(len, samples)), kept[0].target.facts.hidden
    assert (tmp_path / "features" / "features.bin").stat().st_size == tokens * (3 + 1) * width * 8


def test_a_stop_loses_no_whole_pass(train: Train, tmp_path: Path, passes: Passes) -> None:
    passes.stop = 11
    with pytest.raises(KeyboardInterrupt):
        train(stored(tmp_path))
    done = tmp_path / "features" / "done.bin"
    there = done.stat().st_size // 8
    assert 0 < there <= 11
    done.write_bytes(done.read_bytes() + b"\x01\x02\x03")  # a number cut short
    passes.stop = None
    first: list[int] = []
    told = train(stored(tmp_path), "train.batch_size=1", "train.accumulate=2", tell=lambda *what: first.append(what[1]))
    assert there < first[0] < first[-1] == 20, "in passes of another size too"
    assert done.stat().st_size == 20 * 8
    whole = train("train.batch_size=1", "train.accumulate=2", out="whole")
    assert told.summary.score == whole.summary.score


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("train.layers_to_capture=[0,1,3]", r"layers \[0, 1, 2\] there, \[0, 1, 3\] here"),
        ("target.dtype=float32", "type float64 there, float32 here"),
        ("target.checkpoint=copy", "target .*copy"),
        ("train.seq_len=18", "samples [0-9a-f]{16} there"),
    ],
)
def test_features_of_another_are_refused(
    train: Train, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch, change: str, said: str
) -> None:
    shutil.copytree(next(o.partition("=")[2] for o in made if o.startswith("target.checkpoint")), tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    train(stored(tmp_path), "train.max_steps=1")
    with pytest.raises(ConfigError, match=f"train.features: holds other features: .*{said}") as told:
        train(stored(tmp_path), "train.max_steps=1", change, out="other")
    assert "\n" not in str(told.value)


def test_a_folder_of_something_else_is_refused_for_features(train: Train, tmp_path: Path) -> None:
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"train\.features: holds files that are no features"):
        train(stored(tmp_path))
    assert [p.name for p in (tmp_path / "features").iterdir()] == ["thesis.tex"]
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"train\.features: cannot be used"):
        train(f"train.features={tmp_path / 'file'}")


def test_what_does_not_fit_is_refused_before_a_pass(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: Passes
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9, 0, 9))
    with pytest.raises(ConfigError, match=r"has no room: .* tokens of .* bytes, .* choose a folder on a larger disk"):
        train(stored(tmp_path))
    assert not passes.sizes


def test_a_full_disk_is_a_line_and_the_command_goes_on(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: Passes
) -> None:
    real, calls = os.fsync, []

    def fsync(number: int) -> None:
        calls.append(number)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(RunError, match="written: No space left on device; the same command goes on") as told:
        train(stored(tmp_path))
    assert "\n" not in str(told.value)
    monkeypatch.setattr(os, "fsync", real)
    before = len(passes.sizes)
    train(stored(tmp_path))
    assert 0 < len(passes.sizes) - before < 20


def test_a_file_cut_short_is_named(train: Train, tmp_path: Path) -> None:
    train(stored(tmp_path), "train.max_steps=1")
    file = tmp_path / "features" / "features.bin"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(RunError, match="cut short: remove the folder"):
        train(stored(tmp_path), "train.max_steps=9", out="other")


def test_equal_ids_are_kept_once(made: list[str]) -> None:
    data = Path(next(o.partition("=")[2] for o in made if o.startswith("train.data")))
    samples = read_samples(data, "train")
    teacher = Teacher(near_pair()[0], (0, 1), None)
    one, twice = (Features(Path("nowhere"), some, teacher) for some in (samples, samples * 2))
    assert one.starts == twice.starts
    assert one.token == (2 + 1) * teacher.target.facts.hidden * 8
