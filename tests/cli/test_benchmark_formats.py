"""`eagle3 benchmark --format`: the same numbers as JSON, CSV and Markdown, of a run and of a sweep."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.bench.flat import flat
from eagle3.cli import main
from eagle3.cli.report import as_csv, as_markdown

CHAIN = ["spec=chain", "spec.max_total_draft_tokens=null", "spec.layers_to_capture=[0,1]"]
TINY = ["conf=tiny", "runtime.device=cpu", "target.architecture.num_hidden_layers=2", *CHAIN, "bench.repeats=1"]
SHORT = ["bench.prompt_len=4", "bench.output_len=4", "runtime.max_seq_len=64", "hydra.sweep.dir=jobs"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A record, by --format json."""
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("record"))
        patch.setattr("typer.echo", told.append)
        assert main(["benchmark", *TINY, *SHORT, "--format", "json", "--json"]) == 0
    record: dict[str, Any] = json.loads(told[0])
    return record


def leaves(value: object) -> list[float]:
    """All numbers of a part of a record."""
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_csv_has_a_row_a_cell_with_every_number(done: dict[str, Any]) -> None:
    found = read(as_csv(*flat(done)))
    assert [(row["batch"], row["arm"]) for row in found] == [("1", "plain"), ("1", "spec")]
    for row, cell in zip(found, done["cells"], strict=True):
        told = {float(word) for value in row.values() for word in value.split() if _is_number(word)}
        assert set(leaves(cell)) <= told
        assert None not in row
    assert found[1]["output_throughput_median"] == str(done["cells"][1]["output_throughput"][1])
    assert found[1]["overrides"] == " ".join(done["overrides"])


def _is_number(word: str) -> bool:
    try:
        return float(word) is not None
    except ValueError:
        return False


def test_the_head_of_csv_is_fixed(done: dict[str, Any]) -> None:
    part = {"ms": 1.5, "share": 0.25}
    profile = {"steps": 20, "step_ms": 3.5, "total_ms": 6.5, "sections": {"target linear": part}, "host_gap": part}
    full = {**done["cells"][0], "profile": profile, "floor": {"ms": 0.5, "share": 0.125}, "step_ms": None}
    head, (row,) = flat({**done, "cells": [full]})
    assert head == flat(done)[0]
    by_name = dict(zip(head, row, strict=True))
    assert (by_name["profile_target_linear_share"], by_name["profile_host_gap_ms"]) == (0.25, 1.5)
    assert (by_name["floor_ms"], by_name["step_ms_min"], by_name["mean_acceptance_length"]) == (0.5, None, None)


def test_markdown_is_the_table(done: dict[str, Any]) -> None:
    from eagle3.bench.report import table

    shown = table(done)
    shown.columns[1]._cells[0] = "a|b"
    title, gap, head, rule, first, second = as_markdown(shown).splitlines()
    assert (title, gap) == (shown.title, "")
    assert head.startswith("| batch | arm | step ms")
    assert rule.startswith("| ---: | :--- | ---: |")
    assert first.startswith("| 1 | a\\|b | ")
    assert second.startswith("| 1 | spec | ")
    assert head.count("|") == second.count("|")


@pytest.mark.parametrize(("words", "wrong"), [
    (["--json", "--format", "csv"], "contradicts --json"),
    (["--kernels", "--format", "markdown"], "cannot go with --kernels"),
    (["--soak", "1", "--format", "csv"], "cannot go with --soak"),
])  # fmt: skip
def test_formats_that_are_refused(words: list[str], wrong: str, capsys: Capture) -> None:
    assert main(["benchmark", *TINY, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"--format  {wrong}" in err


def test_a_sweep_prints_one_table_of_its_jobs(capsys: Capture) -> None:
    assert main(["benchmark", "-m", *TINY, *SHORT, "bench.prompt_len=4,100", "--format", "csv"]) == 1
    out, err = capsys.readouterr()
    found = read(out)
    assert [(row["job"], row["bench.prompt_len"], row["status"]) for row in found] == [
        ("0", "4", "done"),
        ("1", "100", "failed"),
    ]
    told = json.loads(Path("jobs/0/result.json").read_text())
    assert list(told["numbers"]) == [
        "output_throughput", "output_throughput_min", "output_throughput_max", "plain_output_throughput",
        "passes", "speedup", "tau", "step_ms",
    ]  # fmt: skip
    plain = told["numbers"]["plain_output_throughput"]
    assert told["numbers"]["speedup"] == pytest.approx(told["numbers"]["output_throughput"] / plain)
    assert {name: str(number) for name, number in told["numbers"].items()}.items() <= found[0].items()
    assert told["value"] == told["numbers"]["output_throughput"] > 0
    assert told["acceptance_valid"] is False
    assert "step ms min / median / max" in err, "the jobs' own tables"
    assert "job 1 failed: ConfigError" in err
    assert "of one pass" in err


def test_a_sweep_for_people_is_on_stdout_under_headings(capsys: Capture) -> None:
    assert main(["benchmark", "-m", *TINY, *SHORT, "spec.max_draft_len=2,1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if line.startswith("job ")]
    assert [(head[:6], head.split()[-1]) for head in heads] == [
        ("job 0:", "spec.max_draft_len=2"),
        ("job 1:", "spec.max_draft_len=1"),
    ]
    assert lines[0] == heads[0]
    assert sum("step ms min / median / max" in line for line in lines) == 2
    assert "plain tokens/s" in "".join(lines[-8:])
    assert "best" not in "".join(lines), "the prompts are made up"
    assert lines[-1].startswith("the numbers are of one pass")


def test_json_of_a_sweep_is_a_record_a_job(capsys: Capture) -> None:
    assert main(["benchmark", "-m", *TINY, *SHORT, "spec.max_draft_len=2", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["schema"] for line in out.splitlines()] == ["eagle3.bench/1"]
    assert "speed-up" in err
