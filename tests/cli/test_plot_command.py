"""`eagle3 plot`: what is drawn of runs and sweeps, and what is refused."""

import json
import re
import sys
from pathlib import Path

import pytest

from eagle3.bench.panels import Lines, Panel, read
from eagle3.bench.plots import draw
from eagle3.cli import main

Capture = pytest.CaptureFixture[str]


def trained(folder: Path, *taus: float) -> Path:
    folder.mkdir(parents=True)
    evals = [{"kind": "eval", "tokens": 10**i, "tau": t, "accuracy": [t / 4, 0.1]} for i, t in enumerate(taus, 3)]
    lines = [json.dumps(line) for line in ({"kind": "train", "tokens": 5, "loss": [1.0]}, *evals)]
    (folder / "log.jsonl").write_text("\n".join(lines))
    return folder


def swept(folder: Path, *jobs: tuple[str, float | None, float | None], valid: bool = True) -> Path:
    for i, (overrides, rate, tau) in enumerate(jobs):
        (folder / str(i)).mkdir(parents=True)
        rates = {"output_throughput": rate, "plain_output_throughput": rate and rate / 2}
        numbers = {} if rate is None else {**rates, "tau": tau, "speedup": 2.0}
        told = {"overrides": ["conf=tiny", *overrides.split()], "numbers": numbers, "acceptance_valid": valid}
        (folder / str(i) / "result.json").write_text(json.dumps(told))
    return folder


def test_training_runs_are_lines_by_their_folders_names(tmp_path: Path) -> None:
    runs = [trained(tmp_path / "a", 1.5, 2.0), trained(tmp_path / "b", 1.25), trained(tmp_path / "x" / "b", 3.0)]
    tau, accuracy = read(runs)
    assert (tau.x, tau.log, accuracy.y) == ("training tokens", True, "accuracy of step 1")
    assert tau.lines == {"a": [(1e3, 1.5), (1e4, 2.0)], str(runs[1]): [(1e3, 1.25)], str(runs[2]): [(1e3, 3.0)]}
    assert accuracy.lines["a"] == [(1e3, 0.375), (1e4, 0.5)]


def test_a_sweep_of_which_one_job_is_left_is_a_point(tmp_path: Path) -> None:
    file = swept(tmp_path / "s", ("x=1", 3.0, 2.0)) / "0" / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"swept": ["x"]}))
    rate, _ = read([tmp_path / "s"])
    assert (rate.x, rate.lines) == ("x", {"": [(1.0, 3.0)]})


def test_two_swept_keys_are_an_axis_and_lines(tmp_path: Path) -> None:
    jobs = [(f"spec={spec} spec.max_draft_len={d}", 10.0 * d, d / 2) for spec in ("chain", "tree") for d in (5, 3, 10)]
    folder = swept(tmp_path / "s", *jobs, ("spec=none spec.max_draft_len=3", 7.0, None), ("spec=none", None, None))
    (folder / "7").rename(tmp_path / "apart")  # a failed job without one of the keys would make the axis one of names
    rate, tau = read([folder])
    assert (rate.x, rate.legend, rate.joined, tau.y) == ("spec.max_draft_len", "spec", True, "τ, tokens a step")
    assert rate.lines["tree"] == [(3.0, 30.0), (5.0, 50.0), (10.0, 100.0)], "in the axis' order"
    assert rate.lines["none"] == [(3.0, 7.0)]
    assert list(tau.lines) == ["chain", "tree"], "plain decoding has no τ"


def test_one_swept_key_makes_points_and_jobs_that_failed_none(tmp_path: Path) -> None:
    jobs = [(f"spec={name}", rate, 2.0) for name, rate in (("tree", 5.0), ("none", None), ("chain", 4.0))]
    rate, tau = read([swept(tmp_path / "s", *jobs, valid=False)])
    plain: Lines = {"": [("tree", 2.5), ("chain", 2.0)]}
    lines: Lines = {"": [("tree", 5.0), ("chain", 4.0)]}
    assert rate == Panel("spec", "output tokens/s", lines, joined=False, bottom=0.0, plain=plain)
    assert (tau.bottom, tau.plain) == (1.0, {})
    assert tau.y.endswith("(not valid)")


def test_jobs_come_by_number(tmp_path: Path) -> None:
    rate, _ = read([swept(tmp_path / "s", *((f"conf=c{i}", float(i), 1.0) for i in range(11)))])
    assert [y for _, y in rate.lines[""]] == [float(i) for i in range(11)]


def words_of(picture: bytes) -> list[str]:
    return re.findall(r">([^<>]+)</text>", picture.decode())


def test_a_sweeps_legend_tells_keys_and_plain_decoding(tmp_path: Path, capsys: Capture) -> None:
    jobs = [(f"spec={spec} a={a}", 10.0 * a, 2.0) for spec in ("chain", "tree") for a in (1, 2)]
    words = words_of(draw(read([swept(tmp_path / "s", *jobs)]), "svg"))
    assert words[-3:] == ["spec=chain", "spec=tree", "plain decoding"]
    assert main(["plot", str(tmp_path / "s"), "--out", str(tmp_path / "x.png")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'x.png'}: output tokens/s and τ, tokens a step against a\n"


def test_axes_begin_where_they_should() -> None:
    points: Lines = {"": [(1.0, 0.0), (2.0, 0.0)]}
    words = words_of(draw([Panel("x", "y", points)], "svg"))
    assert not [word for word in words if word.startswith("−")], "a margin below 0"
    points = {"": [(1.0, 3.0), (2.0, 3.5)]}
    assert "0.0" in words_of(draw([Panel("x", "y", points, bottom=0.0)], "svg"))


@pytest.mark.parametrize(("tokens", "ticks"), [
    ((2e6, 3e6, 9e6), ["2M", "4M", "6M", "8M"]),
    ((2e6, 9e6, 3e7), ["2M", "5M", "10M", "20M"]),
    ((1e3, 1e5, 1e6), ["1k", "10k", "100k", "1M"]),
])  # fmt: skip
def test_ticks_of_tokens_are_few_and_short(tokens: tuple[float, ...], ticks: list[str]) -> None:
    words = words_of(draw([Panel("tokens", "y", {"run": [(x, 1.0) for x in tokens]}, log=True)], "svg"))
    assert words[: words.index("tokens")] == ticks


def test_a_picture_is_the_same_each_time_and_holds_the_labels(tmp_path: Path) -> None:
    runs = [str(trained(tmp_path / name, 1.5, 2.0)) for name in ("narrow", "wide")]
    for out in ("one.svg", "two.svg"):
        assert main(["plot", *runs, "--out", str(tmp_path / out)]) == 0
    picture = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert picture == (tmp_path / "two.svg").read_text(encoding="utf-8")
    assert "date" not in picture
    for words in ("narrow", "wide", "training tokens", "simulated τ, tokens a step", "accuracy of step 1"):
        assert f">{words}</text>" in picture


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_other_kinds_of_pictures(kind: str, start: bytes) -> None:
    assert draw([Panel("x", "y", {"": [(1.0, 2.0), (3.0, 1.0)]}, joined=False)], kind).startswith(start)


def test_what_cannot_be_drawn_is_told_in_one_error(tmp_path: Path, capsys: Capture) -> None:
    run, sweep = trained(tmp_path / "run", 1.5), swept(tmp_path / "m" / "s", ("a=1", 1.0, 1.0), ("a=2", 2.0, 1.0))
    torn, empty = trained(tmp_path / "torn", 1.5), trained(tmp_path / "empty")
    (torn / "log.jsonl").write_text('{"kind": "train"}\n{"kind": "eval"}\n')
    bad = swept(tmp_path / "bad", ("a=1", 1.0, 1.0))
    (bad / "0" / "result.json").write_text("[1]")
    three = swept(tmp_path / "three", ("a=1 b=1 c=1", 1.0, 1.0), ("a=2 b=2 c=2", 1.0, 1.0))
    mute, binary = swept(tmp_path / "mute", ("a=1", None, None), ("a=2", None, None)), trained(tmp_path / "binary")
    (binary / "log.jsonl").write_bytes(b"\xff\xfe")
    for folders, words in (
        ([run, sweep], "do not go into one plot"),
        ([tmp_path / "nowhere"], "wants a training run's folder"),
        ([sweep / "0"], "is one job of a sweep"),
        ([tmp_path / "m"], f"name that, such as {sweep}"),
        ([run, torn], "line 2 is no record"),
        ([empty], "tells of no evaluation"),
        ([binary], "cannot be read"),
        ([bad], "is no result of a sweep's job"),
        ([three], "one or two swept keys can be drawn, not 3"),
        ([mute], "no job tells tokens a second or τ"),
    ):
        assert main(["plot", *map(str, folders), "--out", str(tmp_path / "x.svg")]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert err.startswith("1 problem")
    assert not (tmp_path / "x.svg").exists()


@pytest.mark.parametrize(("out", "words"), [("x.jpg", "ends in .svg, .png, .pdf"), ("no/x.svg", "cannot be written")])
def test_a_picture_that_cannot_be_made(tmp_path: Path, capsys: Capture, out: str, words: str) -> None:
    assert main(["plot", str(trained(tmp_path / "run", 1.5)), "--out", str(tmp_path / out)]) == 2
    assert words in capsys.readouterr().err


def test_without_matplotlib(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(trained(tmp_path / "run", 1.5)), "--out", str(tmp_path / "x.svg")]) == 2
    assert "pip install 'eagle3[bench]'" in capsys.readouterr().err
