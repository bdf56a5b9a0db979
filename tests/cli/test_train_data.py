"""`eagle3 train` from nothing: the data first, then the head."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.build import engine as build
from eagle3.build import target
from eagle3.cli import main
from eagle3.engine.runner import Runner
from eagle3.train.samples import SPLITS, Sample, read_meta, split_file, write_samples
from helpers.trained import write_near

Capture = pytest.CaptureFixture[str]
QUICK = ["train.max_steps=2", "train.batch_size=1", "train.out=head"]


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_near(tmp_path_factory.mktemp("near"), count=1)


@pytest.fixture
def asked(near: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides that name prompts for data in `data`, which is not there; the head to draft with is not either."""
    monkeypatch.chdir(tmp_path)
    Path("ids.jsonl").write_text("\n".join(json.dumps({"prompt_ids": [3, n, 5]}) for n in range(12)))
    data = ["train.data=data", "data.prompt_files=[ids.jsonl]", "data.max_new_tokens=9", "data.batch=3"]
    return [*near, *data, "draft=eagle3", "draft.checkpoint=absent", "spec=chain"]


def files(out: str) -> list[bytes]:
    return [split_file(Path(out), split).read_bytes() for split in SPLITS]


def test_data_and_head_from_nothing(asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    engines: list[weakref.ref[Any]] = []
    alive, build_engine = [], build.build_engine

    def built(*given: Any) -> object:
        engine = build_engine(*given)
        worker = engine.runner.worker
        engines.extend(map(weakref.ref, (engine, worker, worker.target, worker.pool)))
        return engine

    def loaded(*given: Any, **named: Any) -> object:
        alive.append([ref() for ref in engines])
        return target.load_target(*given, **named)

    monkeypatch.setattr(build, "build_engine", built)
    monkeypatch.setattr("eagle3.train.run.load_target", loaded)
    assert main(["train", *asked, *QUICK, "--json"]) == 0
    seen = capsys.readouterr()
    (line,) = seen.out.splitlines()
    assert json.loads(line)["updates"] == 2
    assert "12 prompts (11 train, 1 eval), 24 answers, 0 of them there" in seen.err
    assert "train.data is used as it is" not in seen.err
    assert len(engines) > 3
    assert alive == [[None] * len(engines)], "the engine that answered is gone before training begins"

    plain = [o for o in asked if not o.startswith(("draft", "spec"))]
    assert main(["data", *plain, "--out", "own"]) == 0
    assert files("data") == files("own")
    monkeypatch.setattr(build, "build_engine", None)  # what is there is not made again
    assert main(["train", *plain, *QUICK, "train.data=own", "train.out=other"]) == 0
    assert Path("other/model.safetensors").read_bytes() == Path("head/model.safetensors").read_bytes()


def test_it_goes_on_where_the_answers_stopped(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    steps, real = [], Runner.run

    def tired(runner: Runner, plan: object) -> object:
        steps.append(plan)
        if len(steps) == 40:
            raise KeyboardInterrupt
        return real(runner, plan)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run", tired)
        assert main(["train", *asked, *QUICK]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not Path("head").exists()
    done = Path("data/parts/answers.jsonl").read_bytes().count(b"\n")
    assert 0 < done < 24
    assert main(["train", *asked, *QUICK]) == 0
    assert f"24 answers, {done} of them there" in capsys.readouterr().err
    assert read_meta(Path("data"))["answers"]["all"] == 24


def test_data_that_is_there_is_used_and_what_differs_is_told(asked: list[str], capsys: Capture) -> None:
    sample = [Sample((1, 2, 3, 4), ((1, 4),))] * 2
    write_samples(Path("data"), sample, sample, {"max_new_tokens": 8, "seed": 0, "sets": ["self:3"]})
    before = files("data")
    assert main(["train", *asked, *QUICK]) == 0
    seen = capsys.readouterr().err
    told = "data.sets is [], the samples have ['self:3']; data.max_new_tokens is 9, the samples have 8"
    assert seen.count("train.data is used as it is") == 1
    assert f"used as it is: {told}\n" in seen
    assert files("data") == before
    silent = [o for o in asked if not o.startswith("data.prompt_files")]
    assert main(["train", *silent, *QUICK, "train.out=other"]) == 0
    assert "used as it is" not in capsys.readouterr().err, "a configuration without prompts says nothing of data"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["data.prompt_files=[]"], "'eagle3 data' makes such a folder"),
        (["train.out=null"], "train.out=FOLDER"),
        (["train.seq_len=200"], "must not be above runtime.max_seq_len (128)"),
        (["data.prompt_files=[absent.jsonl]"], "absent.jsonl: cannot be read"),
        (["train.data=taken"], "holds no data of ours"),
    ],
)
def test_what_keeps_data_from_being_made(asked: list[str], more: list[str], said: str, capsys: Capture) -> None:
    Path("taken").mkdir()
    Path("taken/notes.txt").touch()
    assert main(["train", *asked, *QUICK, *more]) == 2
    assert said in capsys.readouterr().err
    assert not Path("data").exists()
    assert not Path("head").exists()


def test_ranks_want_data_that_is_there(asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", *asked, *QUICK]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("UnsupportedError")]
    assert "data: has no samples" in line
    assert "run 'eagle3 data' with the same configuration first" in line
    assert not Path("data").exists()


def test_what_is_released_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3.train.data_run import release

    class Ring:
        def __init__(self) -> None:
            self.me = self

    gc.disable()
    try:
        ring = weakref.ref(Ring())
        assert ring() is not None
        emptied: list[bool] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(ring() is None))
        release()
        assert emptied == [True]
    finally:
        gc.enable()
