"""Runs and sweeps through Hydra's own launchers and sweepers."""

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sweep_task

from eagle3.config.ahead import blamed
from eagle3.config.load import Composed, HydraFlags, run
from eagle3.config.results import Outcome, Stopped
from eagle3.errors import ConfigError, Problem, WeightError

SWEEP = HydraFlags(multirun=True)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def results() -> dict[str, dict[str, Any]]:
    """Result files of the sweep, by their folder's name."""
    return {path.parent.name: json.loads(path.read_text()) for path in Path("multirun").rglob("result.json")}


def keep(seen: list[Composed], composed: Composed) -> None:
    seen.append(composed)


def test_a_single_run_gets_the_judged_config_and_a_folder() -> None:
    seen: list[Composed] = []

    assert run(partial(keep, seen), HydraFlags(), ["kv.tokens_per_block=8"]) == 0

    assert seen[0].config.kv.tokens_per_block == 8
    assert seen[0].overrides == ("kv.tokens_per_block=8",)
    assert next(Path("outputs").rglob(".hydra/overrides.yaml")).read_text() == "- kv.tokens_per_block=8\n"


@pytest.mark.parametrize(("size", "status"), [(8, "done"), (16, "failed"), (128, "failed")])
def test_a_single_run_leaves_what_it_came_to(size: int, status: str) -> None:
    error = {8: nullcontext(), 16: pytest.raises(ValueError, match="sixteen"), 128: pytest.raises(ConfigError)}[size]
    with error:
        run(sweep_task.page, HydraFlags(), [f"kv.tokens_per_block={size}"])
    told = json.loads(next(Path("outputs").rglob("result.json")).read_text())
    assert (told["status"], told["numbers"].get("tau")) == (status, 2.0 if size == 8 else None)


@pytest.mark.parametrize("there", ["an answer", '{"tau": 3}', None])
def test_a_file_that_is_not_ours_is_kept(tmp_path: Path, there: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "here" / "result.json"
    file.parent.mkdir()
    file.mkdir() if there is None else file.write_text(there)
    assert run(sweep_task.page, HydraFlags(), ["hydra.run.dir=here", "kv.tokens_per_block=8"]) == 0
    assert file.is_dir() if there is None else file.read_text() == there
    assert "is kept" in capsys.readouterr().err


def test_a_result_of_ours_is_replaced(tmp_path: Path) -> None:
    for size in (8, 32):
        run(sweep_task.page, HydraFlags(), ["hydra.run.dir=here", f"kv.tokens_per_block={size}"])
    assert json.loads((tmp_path / "here" / "result.json").read_text())["value"] == 32


@pytest.mark.parametrize("flags", [HydraFlags(), SWEEP], ids=["run", "sweep"])
def test_facts_that_a_file_leaves_out_may_be_set(flags: HydraFlags) -> None:
    seen: list[Composed] = []
    changed = ["target.architecture.architecture=MistralForCausalLM", "target.architecture.sliding_window=4"]

    assert run(partial(keep, seen), flags, ["conf=tiny", *changed]) == 0

    assert seen[0].config.target.architecture is not None
    assert seen[0].config.target.architecture.sliding_window == 4


def test_a_broken_config_runs_nothing_and_leaves_no_folder() -> None:
    seen: list[Composed] = []

    with pytest.raises(ConfigError, match="power of two"):
        run(partial(keep, seen), HydraFlags(), ["kv.tokens_per_block=7"])

    assert seen == []
    assert not Path("outputs").exists()


def test_an_error_of_ours_comes_out_of_a_single_run_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    def task(_: Composed) -> None:
        raise WeightError("no such file")

    with pytest.raises(WeightError, match="no such file"):
        run(task, HydraFlags(), [])

    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.usefixtures("new_workers")
@pytest.mark.parametrize("extra", [[], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]], ids=["basic", "joblib"])
def test_a_sweep_goes_on_past_failing_cells(extra: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = run(sweep_task.page, SWEEP, ["kv.tokens_per_block=8,16,128", *extra])

    found = results()
    assert code == 1
    assert [found[str(i)]["status"] for i in range(3)] == ["done", "failed", "failed"]
    assert [found[str(i)]["value"] for i in range(3)] == [8.0, None, None]
    assert found["0"]["numbers"] == {"output_throughput": 8.0, "tau": 2.0}
    assert found["1"]["numbers"] == {}
    assert found["1"]["overrides"] == ["kv.tokens_per_block=16"]
    assert found["1"]["error"] == "ValueError: sixteen is not liked here"
    assert found["2"]["error"].startswith("ConfigError: kv.tokens_per_block: does not fit")
    assert "(override kv.tokens_per_block=128)" in found["2"]["error"]
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line.replace("│", "").split() for line in err.splitlines() if line.startswith("│")]
    assert [line[:5] for line in lines] == [
        ["0", "8", "8.0", "2.00", "done"],
        ["1", "16", "–", "–", "failed"],
        ["2", "128", "–", "–", "failed"],
    ]
    assert "job 1 failed: ValueError: sixteen is not liked here" in err
    assert "job 2 failed: ConfigError" in err
    assert "Error executing job" not in err, "Hydra's own line"


def test_a_sweep_without_failures_ends_with_0() -> None:
    own = "train.out=${hydra:runtime.output_dir}/${hydra:job.num}"  # known when jobs are judged ahead too

    assert run(sweep_task.page, SWEEP, ["conf=tiny", "bench.output_len=7", "kv.tokens_per_block=8,32", own]) == 0

    assert sorted(r["value"] for r in results().values()) == [8.0, 32.0]
    assert {r["load"]["bench.output_len"] for r in results().values()} == {"7"}
    assert {r["choices"]["target"] for r in results().values()} == {"tiny"}


def test_all_jobs_are_judged_before_the_first_one_starts() -> None:
    texts = ["conf=tiny", "kv.tokens_per_block=8,33", "spec.max_draft_len=4,2", "sampling.sead=1"]

    with pytest.raises(ConfigError) as caught:
        run(sweep_task.page, SWEEP, texts)

    assert [(problem.key, problem.origin) for problem in caught.value.problems] == [
        ("sampling.sead", "override sampling.sead=1"),
        ("spec.max_total_draft_tokens", "conf/conf/tiny.yaml, with spec.max_draft_len=2"),
        ("kv.tokens_per_block", "override kv.tokens_per_block=33"),
    ]
    assert not Path("multirun").exists()


def test_a_problem_is_told_with_the_overrides_that_its_jobs_alone_have() -> None:
    jobs = [["s=0", f"a={a}", f"b={b}"] for a in (1, 2) for b in (1, 2)]
    origins = {(0, 1, 2, 3): None, (2, 3): "the defaults, with a=2", (3,): "the defaults, with a=2 b=2",
               (1, 2, 3): "the defaults, with a=1 b=2"}  # fmt: skip
    assert {numbers: blamed(Problem("k", "m"), numbers, jobs).origin for numbers in origins} == origins
    own = Problem("a", "m", 2, "override a=2")
    assert blamed(own, (2, 3), jobs) == own


@pytest.mark.usefixtures("new_workers")
@pytest.mark.parametrize("extra", [[], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]], ids=["basic", "joblib"])
def test_each_job_of_a_sweep_has_its_own_gpu(extra: list[str]) -> None:
    own = "+hydra.job.env_set.CUDA_VISIBLE_DEVICES=${hydra:job.num}"
    here = f"hydra.sweep.dir={Path.cwd() / 'multirun'}"  # workers that are used again have a folder of their own

    assert run(sweep_task.gpu, SWEEP, ["kv.tokens_per_block=8,32,64", own, here, *extra]) == 0

    assert {name: found["value"] for name, found in results().items()} == {"0": 0.0, "1": 1.0, "2": 2.0}


def test_optuna_finds_the_largest_page(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(
        sweep_task.page,
        SWEEP,
        [
            "hydra/sweeper=optuna",
            "hydra.sweeper.n_trials=3",
            "hydra.sweeper.direction=maximize",
            "hydra.sweeper.sampler.seed=0",
            "kv.tokens_per_block=choice(32,64)",
            "sampling.temperature=interval(0,1)",
        ],
    )

    assert code == 0
    assert len(results()) == 3
    best = next(Path("multirun").rglob("optimization_results.yaml")).read_text()
    assert "best_value: 64.0" in best
    (marked,) = [line for line in capsys.readouterr().err.splitlines() if "best: tokens/s" in line]
    assert marked.replace("│", "").split()[1] == "64"


def test_a_sweep_in_a_recipe_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "own" / "recipe").mkdir(parents=True)
    (tmp_path / "own" / "recipe" / "pages.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /conf: smollm2\n  - _self_\n"
        "hydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      kv.tokens_per_block: 2,4\n"
    )

    assert run(sweep_task.page, HydraFlags(config_dir=tmp_path / "own"), ["recipe=pages"]) == 0

    assert sorted(r["value"] for r in results().values()) == [2.0, 4.0]


def test_a_swept_file_cannot_choose_the_launcher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own" / "conf").mkdir(parents=True)
    (tmp_path / "own" / "conf" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - smollm2\n  - override /hydra/launcher: joblib\n  - _self_\n"
    )
    own = HydraFlags(multirun=True, config_dir=tmp_path / "own")

    with pytest.raises(ConfigError, match="comes too late in a file that is swept"):
        run(sweep_task.page, own, ["conf=mine,smollm2"])
    assert results() == {}
    monkeypatch.setattr("eagle3.config.ahead.MOST", 1)
    assert run(sweep_task.page, own, ["conf=smollm2,mine"]) == 1, "too many to judge all ahead"
    assert [found["status"] for _, found in sorted(results().items())] == ["done", "failed"]
    assert "hydra/launcher: comes too late in a file that is swept" in capsys.readouterr().err
    here = f"hydra.sweep.dir={tmp_path / 'chosen'}"
    assert run(sweep_task.page, own, ["conf=mine", "kv.tokens_per_block=8,32", here]) == 0, "what is not swept may"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("spec=tree,forest", "must be one of chain, chain3, none, tree"),
        ("kv.tokens_per_blok=1,2", "did you mean kv.tokens_per_block?"),
        ("+kv.tokens_per_block=1,2", "needs no +"),
        ("sampling.seed=range(3,3)", "sampling.seed: gives no value to sweep"),
        ("spec=glob(x*)", "spec: gives no value to sweep"),
        ("hydra.sweeper.max_batch_size=0", "Hydra cannot run this"),
    ],
)
def test_a_sweep_over_nonsense_starts_no_job(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(sweep_task.page, SWEEP, [override])

    assert message in str(caught.value)
    assert not Path("multirun").exists()


def test_the_shipped_recipe_narrowed_by_overrides() -> None:
    texts = ["recipe=sample_temperature", "sampling.temperature=0.0,1.2", "sampling.seed=1"]

    assert run(sweep_task.page, SWEEP, texts) == 0

    assert sorted(sorted(r["overrides"]) for r in results().values()) == [
        ["recipe=sample_temperature", "sampling.seed=1", f"sampling.temperature={t}"] for t in ("0.0", "1.2")
    ]


def test_cfg_and_info_show_and_do_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    def task(_: Composed) -> None:
        raise AssertionError("must not run")

    assert run(task, HydraFlags(cfg="job", package="spec"), ["spec=chain"]) == 0
    shown = capsys.readouterr().out
    assert run(task, HydraFlags(cfg="hydra", resolve=True, package="hydra.job.name"), []) == 0
    named = capsys.readouterr().out
    assert run(task, HydraFlags(info="searchpath"), []) == 0

    assert "# @package spec" in shown
    assert "max_draft_len: 4" in shown
    assert named == "eagle3\n"
    assert "main" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "flags", "more"),
    [("hydra.run.dir", HydraFlags(), []), ("hydra.sweep.dir", SWEEP, ["kv.tokens_per_block=8,16"])],
)
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, key: str, flags: HydraFlags, more: list[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as error:
        run(sweep_task.page, flags, [f"{key}={tmp_path / 'file' / 'x'}", *more])
    assert [(problem.key, problem.origin) for problem in error.value.problems] == [
        (key, f"override {key}={tmp_path / 'file' / 'x'}")
    ]


def interrupted(composed: Composed) -> float:
    if composed.config.kv.tokens_per_block == 16:
        raise Stopped(Outcome(5.0, {"tau": 2.0}))
    return 1.0


def test_a_job_that_is_interrupted_leaves_what_it_came_to(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(interrupted, SWEEP, ["kv.tokens_per_block=8,16,32"])
    found = [told for _, told in sorted(results().items())]
    assert [told["status"] for told in found] == ["done", "stopped"]
    assert found[1]["numbers"] == {"tau": 2.0}
    assert found[0]["swept"] == ["kv.tokens_per_block"]
    assert "kv.tokens_per_block" in capsys.readouterr().err, "the table of both"


def looked(composed: Composed) -> list[Problem]:
    size = composed.config.kv.tokens_per_block
    return [Problem("kv.tokens_per_block", "will not do", size)] * (size > 8)


def test_what_is_looked_at_ahead_starts_no_job() -> None:
    with pytest.raises(ConfigError) as error:
        run(sweep_task.page, SWEEP, ["kv.tokens_per_block=8,16", "spec=glob(chain*)"], look=looked)
    (problem,) = error.value.problems
    assert (problem.value, problem.origin) == (16, "override kv.tokens_per_block=16")
    assert not Path("multirun").exists()
    apart = ["kv.tokens_per_block=8,32", "hydra.job.chdir=true"]  # paths may be those of a job's own folder
    assert run(sweep_task.page, SWEEP, apart, look=looked) == 0


def late(composed: Composed) -> float:
    raise ConfigError([Problem("kv.tokens_per_block", "will not do", 8), Problem("sampling.seed", "nor will this", 0)])


def test_what_a_task_finds_in_the_configuration_is_told_with_who_set_it() -> None:
    with pytest.raises(ConfigError) as error:
        run(late, HydraFlags(), ["kv.tokens_per_block=8"])
    assert [problem.origin for problem in error.value.problems] == ["override kv.tokens_per_block=8", None]
