"""What a sweep tells of its jobs, without running any."""

import pytest

from eagle3.config.load import compose
from eagle3.config.results import Outcome, Result, best, differing, load, notes, print_table, rows, swept, table, told

MEASURED = {"output_throughput": 80.0, "speedup": 2.0, "tau": 3.0, "step_ms": 9.5}


def job(overrides: str, outcome: Outcome | float | None, error: str | None = None) -> Result:
    status = "failed" if error else "done"
    made_of = {"overrides": overrides.split(), "choices": {}, "load": {}}
    return {"status": status, **made_of, **told(outcome), "error": error, "folder": "x"}


SWEEP = [
    job("conf=a spec=chain +x.y=[a]", Outcome(80.0, MEASURED)),
    job("conf=a spec=tree +x.y=[b]", Outcome(90.0, {**MEASURED, "output_throughput": 90.0}, acceptance_valid=False)),
    job("conf=a spec=tree", None, "WeightError: lost"),
    job("conf=a spec=none +x.y=[a]", Outcome(40.0, {"output_throughput": 40.0, "speedup": None, "tau": None})),
]


def cells(results: list[Result]) -> list[list[str]]:
    columns = table(results).columns
    return [
        [str(c.header) for c in columns],
        *(list(map(str, r)) for r in zip(*(c.cells for c in columns), strict=True)),
    ]


def test_a_row_a_job_with_what_was_swept_and_all_numbers() -> None:
    assert cells(SWEEP) == [
        ["job", "spec", "x.y", "tokens/s", "speed-up", "τ", "ms a step", "status", "folder"],
        ["0", "chain", "[a]", "80.0", "2.00×", "3.00", "9.50", "done, best: tokens/s", "x"],
        ["1", "tree", "[b]", "90.0", "2.00× (not valid)", "3.00 (not valid)", "9.50", "done", "x"],
        ["2", "tree", "–", "–", "–", "–", "–", "failed", "x"],
        ["3", "none", "[a]", "40.0", "–", "–", "–", "done", "x"],
    ]


def test_the_rows_for_csv_hold_the_same_numbers_as_they_are() -> None:
    head, found = rows(SWEEP)
    by_name = [dict(zip(head, row, strict=True)) for row in found]
    assert head[:3] == ["job", "spec", "x.y"]
    assert [row["tau"] for row in by_name] == [3.0, 3.0, None, None]
    assert [row["best"] for row in by_name] == [True, False, False, False]
    assert [row["acceptance_valid"] for row in by_name] == [True, False, None, None]
    assert by_name[2]["error"] == "WeightError: lost"


def test_a_task_that_tells_a_number_alone_has_no_best_as_less_may_be_better() -> None:
    seconds = [job("a=1", 3.5), job("a=2", 1.25), job("a=3", float("nan"))]
    assert best(seconds) == set()
    assert [row[:3] for row in cells(seconds)] == [
        ["job", "a", "value"], ["0", "1", "3.5"], ["1", "2", "1.25"], ["2", "3", "–"]
    ]  # fmt: skip


def rate(overrides: str, value: float, speedup: float | None = 2.0, passes: int = 3, valid: bool = True) -> Result:
    numbers = {"output_throughput": value, "passes": passes, "speedup": speedup, "tau": 2.0}
    return job(overrides, Outcome(value, numbers, acceptance_valid=valid))


def test_the_best_is_one_of_those_that_can_be_compared() -> None:
    assert best([rate("a=1", 5.0)]) == set(), "of one there is none"
    assert best([rate("a=1", 5.0), rate("a=2", 7.0)]) == {1}
    assert best([rate("a=1", 5.0), rate("a=2", 7.0, valid=False)]) == set()
    assert best([rate("a=1", 5.0), rate("a=2", 6.0), rate("a=3", 7.0) | {"status": "stopped"}]) == {1}
    assert best([rate("a=1", 5.0, 0.7), rate("a=2", 7.0, 0.9)]) == set(), "plain decoding is faster"
    assert best([rate("a=1", 5.0, None), rate("a=2", 7.0, None)]) == {1}, "plain decoding alone"


def test_each_load_has_a_best_of_its_own() -> None:
    speeds = {("1", "[1]"): 5.0, ("2", "[1]"): 4.0, ("1", "[8]"): 30.0, ("2", "[8]"): 32.0}
    found = [rate(f"a={a}", value) | {"load": {"bench.batch_sizes": b}} for (a, b), value in speeds.items()]
    assert best(found) == {0, 3}
    assert best(found[1:3]) == set()


def test_a_load_is_told_as_a_user_writes_it() -> None:
    config = compose(["conf=tiny", "bench.batch_sizes=[1, 8]", "bench.prompts='my own:3'"]).config
    said = {"bench.batch_sizes": "[1,8]", "bench.prompts": "my own:3", "bench.ignore_eos": "true"}
    assert load(config).items() >= said.items()
    assert load(compose(["conf=tiny"]).config)["bench.prompts"] == "null"


def test_what_a_swept_file_brought_is_shown_where_it_differs() -> None:
    def brought(conf: str, spec: str, lens: str, **choices: str | None) -> Result:
        asked = {"bench.output_len": lens, "bench.repeats": "3"}
        return job(f"conf={conf}", 1.0) | {"choices": {"conf": conf, "spec": spec, **choices}, "load": asked}

    jobs = [brought("a", "tree", "64", target="a"), brought("b", "tree", "8", target="b"), brought("c", "chain", "64")]
    failed = job("conf=d", None, "lost")
    assert differing([*jobs, failed]) == {
        "conf": ["a", "b", "c", "d"],
        "spec": ["tree", "tree", "chain", None],
        "target": ["a", "b", None, None],
        "bench.output_len": ["64", "8", "64", None],
    }
    assert differing(jobs[:2]) == {"conf": ["a", "b"], "bench.output_len": ["64", "8"]}, "the target is as the engine"
    assert differing([one | {"overrides": [f"bench={i}"]} for i, one in enumerate(jobs[:2])]) == {
        "bench": ["0", "1"], "conf": ["a", "b"]
    }  # fmt: skip


def test_the_best_says_by_what() -> None:
    trained = [job(f"a={tau}", Outcome(tau, {"tau": tau, "loss": 2.0})) for tau in (1.5, 2.5)]
    assert cells(trained)[2][-2] == "done, best: τ"


def test_what_a_reader_must_know_is_told_below(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast, forced = rate("a=1", 5.0, 0.7), rate("a=2", 7.0, 1.2), rate("a=3", 9.0, 1.5, valid=False)
    assert notes([slow, fast]) == notes([rate("a=1", 5.0, None)]) == notes(SWEEP) == []
    assert notes([slow, forced]) == ["no job is faster than plain decoding"]
    print_table([slow, rate("a=2", 6.0, 0.8, passes=1)], stderr=False)
    out, err = capsys.readouterr()
    first, second = out.splitlines()[-2:]
    assert first == "no job is faster than plain decoding"
    assert second.startswith("the numbers are of one pass")
    assert err == ""


def test_how_passes_differed_is_for_wide_tables() -> None:
    names = ("output_throughput", "output_throughput_min", "output_throughput_max", "plain_output_throughput", "passes")
    found = [job(f"a={i}", Outcome(7.0, dict(zip(names, (7.0, 6.0, 9.0, 5.0, 3), strict=True)))) for i in (1, 2)]
    assert cells(found)[0] == ["job", "a", "tokens/s", "plain tokens/s", "status", "folder"]
    assert [str(c.header) for c in table(found, spread=True).columns[3:6]] == [
        "min tokens/s", "max tokens/s", "plain tokens/s"
    ]  # fmt: skip
    head, (row, _) = rows(found)
    assert {name: row[head.index(name)] for name in names} == found[0]["numbers"]


def test_what_all_jobs_share_or_repeat_was_not_swept() -> None:
    assert swept(SWEEP[:2]) == ["spec", "x.y"]
    assert swept([SWEEP[0], SWEEP[0]]) == []
    assert swept([SWEEP[0] | {"swept": ["x.y"]}]) == ["x.y"], "others never began"
    assert swept(SWEEP[1:3]) == ["x.y"], "a job without the key differs"


def test_the_table_is_on_stderr_as_the_users_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(SWEEP)
    out, err = capsys.readouterr()
    assert out == ""
    assert "[a]" in err
    assert "job 2 failed: WeightError: lost" in err


def test_numbers_that_are_not_finite_are_unknown() -> None:
    told_ = told(Outcome(1.0, {"tau": float("inf"), "loss": 0.5}))
    assert told_ == {"value": 1.0, "numbers": {"tau": None, "loss": 0.5}, "acceptance_valid": None}
