"""What a sweep tells of its jobs, without running any."""

import pytest

from eagle3.config.results import Outcome, Result, best, print_table, rows, swept, table, told

MEASURED = {"output_throughput": 80.0, "speedup": 2.0, "tau": 3.0, "step_ms": 9.5}


def job(overrides: str, outcome: Outcome | float | None, error: str | None = None) -> Result:
    status = "failed" if error else "done"
    return {"status": status, "overrides": overrides.split(), **told(outcome), "error": error, "folder": "x"}


SWEEP = [
    job("conf=a spec=chain +x.y=[a]", Outcome(80.0, MEASURED)),
    job("conf=a spec=tree +x.y=[b]", Outcome(90.0, {**MEASURED, "output_throughput": 90.0}, acceptance_valid=False)),
    job("conf=a spec=tree", None, "WeightError: lost"),
    job("conf=a spec=none +x.y=[a]", Outcome(40.0, {**MEASURED, "output_throughput": 40.0, "tau": None})),
]


def cells(results: list[Result]) -> list[list[str]]:
    columns = table(results).columns
    return [
        [str(c.header) for c in columns],
        *(list(map(str, r)) for r in zip(*(c.cells for c in columns), strict=True)),
    ]


def test_a_row_a_job_with_what_was_swept_and_all_numbers() -> None:
    assert cells(SWEEP) == [
        ["job", "spec", "x.y", "tok/s", "speed-up", "τ", "ms a step", "status", "folder"],
        ["0", "chain", "[a]", "80.0", "2.00×", "3.00", "9.50", "done", "x"],
        ["1", "tree", "[b]", "90.0", "2.00×", "3.00 (not valid)", "9.50", "done, best", "x"],
        ["2", "tree", "–", "–", "–", "–", "–", "failed", "x"],
        ["3", "none", "[a]", "40.0", "2.00×", "–", "9.50", "done", "x"],
    ]


def test_the_rows_for_csv_hold_the_same_numbers_as_they_are() -> None:
    head, found = rows(SWEEP)
    by_name = [dict(zip(head, row, strict=True)) for row in found]
    assert head[:3] == ["job", "spec", "x.y"]
    assert [row["tau"] for row in by_name] == [3.0, 3.0, None, None]
    assert [row["best"] for row in by_name] == [False, True, False, False]
    assert [row["acceptance_valid"] for row in by_name] == [True, False, None, None]
    assert by_name[2]["error"] == "WeightError: lost"


def test_a_task_that_tells_a_number_alone_has_no_best_as_less_may_be_better() -> None:
    seconds = [job("a=1", 3.5), job("a=2", 1.25), job("a=3", float("nan"))]
    assert best(seconds) is None
    assert [row[:3] for row in cells(seconds)] == [
        ["job", "a", "value"], ["0", "1", "3.5"], ["1", "2", "1.25"], ["2", "3", "–"]
    ]  # fmt: skip


def test_the_best_of_one_is_none() -> None:
    assert best(SWEEP[1:3]) is None
    assert best(SWEEP[:2]) == 1


def test_what_all_jobs_share_or_repeat_was_not_swept() -> None:
    assert swept(SWEEP[:2]) == ["spec", "x.y"]
    assert swept([SWEEP[0], SWEEP[0]]) == []
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
