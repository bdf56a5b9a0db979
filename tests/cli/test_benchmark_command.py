"""`eagle3 benchmark`: what it reports, and its profile and trace."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.bench import run
from eagle3.bench.kernels import Case, Timed
from eagle3.bench.run import Pass
from eagle3.bench.soak import Traffic
from eagle3.cli import main
from eagle3.cli.bench_modes import clock
from eagle3.cli.benchmark import Options, task
from eagle3.cli.report import Format
from eagle3.errors import ConfigError
from eagle3.kv.pages import Pages
from eagle3.text.prompts import Prompt
from helpers.changed import changed

SMALL = ["conf=tiny", "runtime.device=cpu", "target.architecture.num_hidden_layers=2", "spec.layers_to_capture=[0,1]"]
SHORT = ["bench.prompt_len=8", "bench.output_len=12", "bench.repeats=1", "runtime.max_seq_len=64"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(capsys: Capture, *more: str) -> dict[str, Any]:
    assert main(["benchmark", *SMALL, *SHORT, *more, "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_profile(capsys: Capture) -> None:
    cells = told(capsys, "bench.batch_sizes=[1,2]", "--profile")["cells"]
    assert [(c["batch"], c["arm"]) for c in cells] == [(1, "plain"), (1, "spec"), (2, "plain"), (2, "spec")]
    common = {"read", "target attention", "target linear", "target other", "verify", "write"}
    for cell in cells:
        profile = cell["profile"]
        assert set(profile["sections"]) == common | ({"move", "draft", "build"} if cell["arm"] == "spec" else set())
        assert all(part["ms"] > 0 for part in profile["sections"].values())
        for part in profile["sections"].values():
            assert part["share"] == pytest.approx(part["ms"] / profile["total_ms"])
        assert profile["steps"] >= 20
        assert profile["step_ms"] == cell["step_ms"][1]
        assert profile["host_gap"]["ms"] == pytest.approx(profile["host_gap"]["share"] * profile["step_ms"])


def test_without_a_profile(capsys: Capture) -> None:
    record = told(capsys)
    assert [c["profile"] for c in record["cells"]] == [None, None]
    assert [c["floor"] for c in record["cells"]] == [None, None], "no floor is known of a CPU"


def test_steps_that_there_are_none_of(capsys: Capture) -> None:
    cells = told(capsys, "bench.output_len=1", "--profile")["cells"]
    assert [(c["step_ms"], c["profile"]) for c in cells] == [(None, None)] * 2


def test_answers_end_where_they_may(capsys: Capture) -> None:
    stop = f"sampling.stop_token_ids={[*range(256)]}".replace(" ", "")  # any token ends an answer
    for ignore, steps in (("true", True), ("false", False)):
        _, spec = told(capsys, stop, f"bench.ignore_eos={ignore}")["cells"]
        assert (spec["spec"]["num_spec_steps"] > 0) == steps


def test_prompts_of_a_set(monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr("eagle3.text.sets.read_set", lambda name: asked.append(name) or [Prompt(ids=(1, 2, 3))])
    assert told(capsys, "bench.prompts=chat:1")["cells"][1]["spec"]["acceptance_valid"]
    assert asked == ["chat:1"]
    (tmp_path / "p.jsonl").write_text('{"prompt_ids": [1, 2]}\n')
    assert main(["benchmark", *SMALL, *SHORT, "bench.prompts=chat:1", "--prompt-file", "p.jsonl"]) == 2
    assert "bench.prompts" in capsys.readouterr().err


def test_prompts_that_cannot_be_are_told_before_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3.build.engine.build_arms", lambda *_: pytest.fail("nothing must be loaded"))
    prompts = (Prompt(ids=(1, 256), origin="p.jsonl:1"), Prompt(text="a", origin="p.jsonl:2"))
    with pytest.raises(ConfigError) as raised:
        task(Options(prompts, Format.json), changed((*SMALL, *SHORT)))
    assert [problem.origin for problem in raised.value.problems] == ["p.jsonl:1", "p.jsonl:2"]
    assert "no tokenizer" in raised.value.problems[1].message


def test_tables(capsys: Capture) -> None:
    assert main(["benchmark", *SMALL, *SHORT, "--profile"]) == 0
    out = capsys.readouterr().out
    for words in ("floor ms (share)", "target attention", "marked step", "step without marks", "host gap"):
        assert words in out


def test_trace(tmp_path: Path) -> None:
    assert main(["benchmark", *SMALL, *SHORT, "--trace", "steps.json"]) == 0
    assert json.loads((tmp_path / "steps.json").read_text())["traceEvents"]


@pytest.mark.parametrize("wrong", [["--trace", "nowhere/steps.json"], ["--trace", "."], ["-m", "--trace", "x.json"]])
def test_a_trace_that_cannot_be_written(wrong: list[str], capsys: Capture, tmp_path: Path) -> None:
    assert main(["benchmark", *SMALL, *SHORT, *wrong]) == 2
    assert "--trace" in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "told before anything ran"


def test_a_stop_leaves_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    passes = iter([run.one_pass] * 3)  # two arms unscored, one scored

    def cut(*given: Any) -> Pass:
        if (one := next(passes, None)) is None:
            raise KeyboardInterrupt
        return one(*given)

    monkeypatch.setattr(run, "one_pass", cut)
    assert main(["benchmark", *SMALL, *SHORT, "--json"]) == 130
    seen = capsys.readouterr()
    record = json.loads(seen.out)
    assert record["stopped_early"] is True
    assert [(c["arm"], c["passes"]) for c in record["cells"]] == [("plain", 1)]
    assert "interrupted: plain has 1 of" in seen.err
    assert main(["benchmark", *SMALL, *SHORT, "--json"]) == 130
    seen = capsys.readouterr()
    assert (seen.out, "interrupted before the end of the first pass" in seen.err) == ("", True)


SIZES = ["runtime.max_seq_len=64", "runtime.max_batch_size=2", "bench.output_len=8"]
SOAK = ["benchmark", *SMALL, *SIZES]


def test_soak(capsys: Capture) -> None:
    assert main([*SOAK, "--soak", "0.05", "--json"]) == 0
    soak = json.loads(capsys.readouterr().out)["soak"]
    assert (soak["pages"], soak["slots"]) == ("ok", "ok")
    assert soak["pages_free"] == soak["pages_total"]
    assert (soak["slots_free"], soak["slots_total"]) == (2, 2)
    assert 1 <= len(soak["windows"]) <= 11
    for window in soak["windows"]:
        assert window["steps"] > window["full_steps"]
        assert window["pages_free"] == soak["pages_total"]
        assert window["memory"]["resident"] > 0
    assert soak["output_throughput"] > 0


def test_soak_table_of_plain_decoding(capsys: Capture) -> None:
    plain = ["target=tiny", "draft=none", "spec=none", "runtime.device=cpu"]
    assert main(["benchmark", "-m", *plain, *SIZES, "--soak", "0.01"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("job 0: target=tiny draft=none")
    for words in ("mixed load", "pages ok", "slots ok", "memory ", "drift ", "full step ms", "resident MiB"):
        assert words in out


def test_soak_that_is_stopped(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    step = Traffic.step

    def third(traffic: Traffic) -> None:
        if traffic.steps == 2:
            raise KeyboardInterrupt
        step(traffic)

    monkeypatch.setattr(Traffic, "step", third)
    assert main([*SOAK, "--soak", "1", "--json"]) == 130
    record = json.loads(capsys.readouterr().out)
    assert record["stopped_early"] is True
    assert ([w["steps"] for w in record["soak"]["windows"]], record["soak"]["pages"]) == ([2], None)


def test_soak_that_leaks_a_page(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    release = Pages.release
    monkeypatch.setattr(Pages, "release", lambda pool, owned: release(pool, owned[1:]) or owned.clear())
    assert main([*SOAK, "--soak", "1", "--json"]) == 1
    out, err = capsys.readouterr()
    soak = json.loads(out)["soak"]
    assert soak["pages"] == "no"
    assert soak["pages_free"] < soak["pages_total"]
    assert "pages did not come back" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--kernels"], "--kernels  wants a GPU"),
        (["--soak", "0"], "--soak  wants minutes"),
        (["--soak", "nan"], "--soak  wants minutes"),
        (["--soak", "1", "--kernels", "--profile"], "--soak  cannot go with --kernels, --profile"),
        (["--kernels", "--trace", "x.json"], "--kernels  cannot go with --trace"),
    ],
)
def test_modes_that_are_refused(flags: list[str], words: str, capsys: Capture) -> None:
    assert main(["benchmark", *SMALL, *flags]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("floor", [None, 20.0])
def test_kernels(floor: float | None, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    case = Case(8, 60, 32768, 32, 1027, 32, 8, 128, None, torch.bfloat16, steady=False)
    monkeypatch.setattr("eagle3.bench.kernels.time_kernels", lambda _: [Timed(case, 40.0, floor)])
    assert main(["benchmark", *SMALL, "--kernels", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["kernels"]["tree_attention"][0]
    assert (row["batch"], row["rows"], row["context"], row["dtype"], row["us"]) == (8, 60, 32768, "bfloat16", 40.0)
    assert row["floor"] == (floor and {"us": 20.0, "share": 0.5})
    assert main(["benchmark", *SMALL, "--kernels"]) == 0
    out = capsys.readouterr().out
    assert "32 / 8 × 128" in out
    assert ("50%" in out) == (floor is not None)


def test_the_time_that_is_left() -> None:
    assert [clock(s) for s in (480, 61.2, 9, -3)] == ["8:00", "1:02", "0:09", "0:00"]
