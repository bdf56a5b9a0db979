"""`eagle3 train`: from samples to a head that the engine serves."""

import fcntl
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.cli import main
from eagle3.cli.train import apart, steps
from eagle3.config.load import Composed, compose
from eagle3.train import trainer
from eagle3.train.samples import Sample, write_samples
from helpers.pairs import near_pair
from helpers.trained import write_near

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_near(tmp_path_factory.mktemp("near"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def last(capsys: Capture) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return told


def test_a_head_learns_and_the_engine_serves_it(near: list[str], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "head"
    assert main(["train", *near, f"train.out={out}", "train.epochs=16", "--json"]) == 0
    told = last(capsys)
    assert told["samples"] == 48
    assert told["skipped"] == 0
    assert told["tau"] > 3
    assert told["head"] == str(out)
    assert told["memory"]["sum"] < sum(told["memory"]["parts"].values())
    assert told["memory"]["peak"] is None
    assert len(told["accuracy"]) == len(told["loss"]) == 4
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    first, final = (next(line for line in some if line["kind"] == "train") for some in (lines, lines[::-1]))
    assert final["loss"][0] < first["loss"][0]
    assert final["accuracy"][3] > first["accuracy"][3]

    engine = [o for o in near if not o.startswith("train.")]
    head = ["draft=eagle3", f"draft.checkpoint={out}", "draft.dtype=float64", "spec=chain", "spec.max_draft_len=4"]
    prompts = [x for ids in ("3,1,2", "7,9,12,5", "0,15,2") for x in ("--prompt-ids", ids)]
    asked = ["sampling.max_new_tokens=48", *prompts, "--json"]
    assert main(["generate", *engine, *head, *asked]) == 0
    drafted = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["generate", *engine, *asked]) == 0
    alone = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["token_ids"] for r in drafted] == [r["token_ids"] for r in alone]
    steps = sum(r["metrics"]["spec"]["num_spec_steps"] for r in drafted)
    accepted = sum(r["metrics"]["spec"]["num_accepted_draft_tokens"] for r in drafted)
    assert 1 + accepted / steps > 3


def test_what_is_told_without_json(near: list[str], capsys: Capture) -> None:
    assert main(["train", *near, "train.out=head", "train.max_steps=2", "train.batch_size=1"]) == 0
    out = capsys.readouterr().out
    for words in ("2 updates", "0 longer than", "accuracy by step: 0.", "tau ", "draft.checkpoint=head"):
        assert words in out


def test_a_head_of_sixteen_bits(near: list[str], capsys: Capture) -> None:
    small = [
        "train.dtype=bfloat16",
        "train.draft_vocab_size=9",
        "train.max_steps=3",
        "train.loss=kl",
        "train.mean=masked",
    ]
    assert main(["train", *near, *small, "train.out=head", "train.lm_head=target", "--json"]) == 0
    assert last(capsys)["updates"] == 3
    state = torch.load(Path("head/checkpoints/3/state.pt"), weights_only=True)["optimiser"]
    assert {m.dtype for m in state["masters"]} == {torch.float32}
    config = json.loads(Path("head/config.json").read_text())
    assert (config["torch_dtype"], config["draft_vocab_size"]) == ("bfloat16", 9)


def test_random_weights_will_do_to_try_it(tmp_path: Path, capsys: Capture) -> None:
    samples = [Sample(tuple(range(i, i + 20)), ((5, 20),)) for i in range(4)]
    write_samples(tmp_path / "data", samples, samples[:1], {})
    shape = ["train.batch_size=1", "train.epochs=1", "train.steps=2", "train.dtype=float32"]
    assert (
        main(["train", "conf=tiny", *shape, "train.data=data", "train.out=head", "runtime.device=cpu", "--json"]) == 0
    )
    assert last(capsys)["tokens"] == 80


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_exits_with_its_code(
    near: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture, how: signal.Signals, code: int
) -> None:
    before = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]
    real = trainer.rate

    def rate(cfg: Any, update: int, updates: int) -> float:
        if update == 2:
            os.kill(os.getpid(), how)
        return real(cfg, update, updates)

    run = ["train", *near, "train.out=head", "train.max_steps=6", "train.batch_size=1", "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "rate", rate)
        assert main(run) == code
    assert "stopped; the same command goes on from what is in head" in capsys.readouterr().err
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == before
    assert [path.name for path in Path("head/checkpoints").iterdir()] == ["3"]
    assert Path("head/model.safetensors").is_file()
    assert main(run) == 0
    assert last(capsys)["updates"] == 6
    updates = [json.loads(line)["update"] for line in Path("head/log.jsonl").read_text().splitlines()]
    assert updates == [3, 6, 6, 6], "where it stopped, at its end, the score and the memory"


def test_jobs_of_a_sweep_that_differ_fill_folders_of_their_own(near: list[str]) -> None:
    one = compose([*near, "train.out=head"])

    def asked(**changes: object) -> Composed:
        return replace(one, config=replace(one.config, train=replace(one.config.train, **changes)))

    look = apart()
    assert look(one) == look(asked(save_every=7)) == look(asked(lr=1.0, out="other")) == []
    (problem,) = look(asked(lr=1.0))
    assert (problem.key, problem.value) == ("train.out", "head")


def test_sigterm_before_the_first_update_is_told_too(
    near: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("eagle3.train.run.load_target", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["train", *near, "train.out=head"]) == 143
    assert "stopped; the same command" in capsys.readouterr().err


def test_a_run_that_had_ended_says_so_and_writes_nothing(near: list[str], capsys: Capture) -> None:
    run = ["train", *near, "train.out=head", "train.max_steps=2", "train.batch_size=1", "--json"]
    assert main(run) == 0
    seen = capsys.readouterr()
    first, text = json.loads(seen.out), Path("head/log.jsonl").read_text()
    assert "had ended" not in seen.err
    assert main(run) == 0
    seen = capsys.readouterr()
    again = json.loads(seen.out)
    assert "this run had ended at update 2 already: nothing is learnt or written" in seen.err
    assert (first.pop("already_done"), again.pop("already_done")) == (False, True)
    assert (again["updates"], again["tokens"], again["tau"]) == (first["updates"], first["tokens"], first["tau"])
    assert Path("head/log.jsonl").read_text() == text
    Path("head/log.jsonl").write_text(text[: text.index('{"kind": "eval"')])  # stopped before it was held against them
    assert main(run) == 0
    assert "had ended" not in capsys.readouterr().err
    assert len(Path("head/log.jsonl").read_text().splitlines()) == len(text.splitlines())


def test_each_evaluation_is_told(near: list[str], capsys: Capture) -> None:
    run = ["train.max_steps=4", "train.batch_size=1", "train.eval_every=2", "train.log_every=4"]
    assert main(["train", *near, "train.out=head", *run]) == 0
    err = capsys.readouterr().err
    evals = re.findall(r"update (\d) of 4: on held-out samples tau \d\.\d\d, accuracy by step( 0\.\d{3}){4}\n", err)
    assert [update for update, _ in evals] == ["2", "4"]
    assert re.search(
        r"update 4 of 4: loss \d\.\d\d \(step 1\) … \d\.\d\d \(step 4\), accuracy 0\.\d{3} \(step 1\) … .* tokens/s",
        err,
    )


def test_one_step_is_no_range() -> None:
    assert steps([2.724], 2) == "2.72 (step 1)"


def test_a_folder_in_use_is_refused(near: list[str], capsys: Capture) -> None:
    run = ["train", *near, "train.out=head", "train.max_steps=1", "train.batch_size=1"]
    assert main(run) == 0
    log = Path("head/log.jsonl").read_text()
    capsys.readouterr()
    with Path("head/run.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert main(run) == 2
    err = capsys.readouterr().err
    assert "train.out  in use by another run" in err
    assert "Traceback" not in err
    assert Path("head/log.jsonl").read_text() == log


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["train.data=null"], "train.data=FOLDER"),
        (["train.out=null"], "train.out=FOLDER"),
        (["train.data=nowhere"], "eagle3 data"),
        (["train.data=empty"], "train.jsonl.gz: has no samples"),
        (["train.data=foreign"], "holds token 99 in train, the target has 16"),
        (["train.seq_len=8"], "no sample of train fits"),
        (["train.long_samples=refuse", "train.seq_len=30"], "train.long_samples=skip leaves such out"),
        (["train.out=taken"], "choose an empty folder"),
        (["train.steps=0"], "must be at least 1"),
    ],
)
def test_faults_are_a_line_and_exit_2(near: list[str], changes: list[str], said: str, capsys: Capture) -> None:
    one = [Sample((1, 2, 3), ((1, 3),))]
    write_samples(Path("empty"), [], [], {})
    write_samples(Path("foreign"), [Sample((1, 99, 3), ((1, 3),))], one, {})
    Path("taken").mkdir()
    Path("taken/notes.txt").touch()
    assert main(["train", *near, "train.out=head", *changes, "--json"]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert "Traceback" not in told.err
    assert not told.out
    assert not Path("head").exists()


def test_help_teaches(capsys: Capture) -> None:
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    for words in (
        "eagle3 data",
        "train.out",
        "Ctrl-C",
        "torchrun",
        "draft.checkpoint",
        "train.long_samples=refuse",
        "train.features",
    ):
        assert words in out


@pytest.mark.parametrize(
    ("wrote", "more", "words"),
    [
        ({"checkpoint": "other", "tokenizer": "5e1f", "vocab_size": 16}, [], "was written by other, whose tokenizer"),
        (None, ["runtime.batch_invariant=true"], "training does not know it"),
    ],
)
def test_what_training_refuses(
    near: list[str], tmp_path: Path, capsys: Capture, wrote: object, more: list[str], words: str
) -> None:
    sample = [Sample((1, 2, 3, 4), ((1, 4),))] * 2
    write_samples(tmp_path / "data", sample, sample, {"target": wrote} if wrote else {})
    assert main(["train", *near, f"train.data={tmp_path / 'data'}", "train.out=head", *more]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not Path("head").exists()


def test_data_of_the_same_text_under_another_name_is_a_warning(
    near: list[str], tmp_path: Path, capsys: Capture
) -> None:
    sample = [Sample((1, 2, 3, 4), ((1, 4),))] * 2
    wrote = {"checkpoint": "moved", "tokenizer": None, "vocab_size": near_pair()[0].facts.vocab}
    write_samples(tmp_path / "data", sample, sample, {"target": wrote})
    short = [f"train.data={tmp_path / 'data'}", "train.out=head", "train.max_steps=1", "train.batch_size=1"]
    assert main(["train", *near, *short]) == 0
    assert "was written by moved" in capsys.readouterr().err
