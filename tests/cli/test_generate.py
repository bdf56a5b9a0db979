"""`eagle3 generate` from the command line, on a tiny checkpoint."""

import json
import re
from pathlib import Path

import pytest

from eagle3.cli import main
from eagle3.cli.generate import Options, task
from eagle3.errors import ConfigError
from eagle3.text.prompts import Prompt
from eagle3.text.tokenizer import Tokenizer
from helpers.changed import changed
from helpers.checkpoints import write_target

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_target(tmp_path_factory.mktemp("target"), tokenizer=True))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_target(tmp_path_factory.mktemp("bare")))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(checkpoint: str, *words: str) -> int:
    quick = ["runtime.max_seq_len=100", "sampling.max_new_tokens=6"]
    return main(["generate", "conf=base", f"target.checkpoint={checkpoint}", *quick, *words])


def lines(capsys: Capture) -> list[dict[str, object]]:
    """Stdout, all of which must be JSON lines."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_json_lines_come_in_the_order_of_the_prompts(target: str, capsys: Capture) -> None:
    assert run(target, "--prompt", "hello", "--json", "--prompt-ids", "3,4,5", "--prompt", "a") == 0
    first, second, third = lines(capsys)
    keys = "request_id prompt_token_ids token_ids text finish_reason metrics seed error"
    assert set(keys.split()) <= set(first)
    assert [first["request_id"], second["request_id"], third["request_id"]] == ["0", "1", "2"]
    assert third["prompt_token_ids"] == [3, 4, 5], "files and ids come after texts"
    assert first["prompt_token_ids"] != second["prompt_token_ids"]
    assert first["finish_reason"] in ("stop", "length")
    assert set(first["metrics"]) >= {"ttft_ms", "tpot_ms", "e2el_ms"}  # type: ignore[call-overload]


def test_text_streams_and_the_summary_is_on_stderr(target: str, capsys: Capture) -> None:
    assert run(target, "--prompt", "hello", "--json") == 0
    text = lines(capsys)[0]["text"]
    assert run(target, "--prompt", "hello") == 0
    seen = capsys.readouterr()
    assert seen.out == f"{text}\n"
    assert "tokens/s" in seen.err


def test_the_chat_template_is_used_unless_told_not_to(target: str, capsys: Capture) -> None:
    assert run(target, "--prompt", "hi", "--json") == 0
    chat = lines(capsys)[0]["prompt_token_ids"]
    assert run(target, "--prompt", "hi", "--json", "--no-chat") == 0
    plain = lines(capsys)[0]["prompt_token_ids"]
    assert len(chat) > len(plain) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["你好，世界", "a,b=c {x} (y) [z] 'q' \"r\" \\", "${oc.env:HOME} ~x +y ++z"])
def test_no_sign_in_a_prompt_means_anything_to_hydra(target: str, text: str, capsys: Capture) -> None:
    assert run(target, "--prompt", text, "--json", "--no-chat") == 0
    (line,) = lines(capsys)
    assert line["prompt_token_ids"] == Tokenizer(Path(target)).encode(text)
    assert len(line["prompt_token_ids"]) == len(text)  # type: ignore[arg-type]
    assert run(target, f"prompt={text}") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_brings_its_own_sampling(target: str, capsys: Capture, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "max_new_tokens": 2}, {"prompt_ids": [5], "temperature": 1.0, "seed": 9}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(target, "--prompt-file", "p.jsonl", "--json", "sampling.seed=3") == 0
    first, second = lines(capsys)
    assert len(first["token_ids"]) <= 2  # type: ignore[arg-type]
    assert (first["seed"], second["seed"]) == (3, 9)


def test_what_a_prompt_asks_of_its_answer(target: str, bare: str, capsys: Capture, tmp_path: Path) -> None:
    assert run(target, "--prompt", "a", "--json", "--no-chat", "sampling.ignore_eos=true") == 0
    (free,) = lines(capsys)
    text = str(free["text"])
    assert free["logprobs"] is free["stopped_by"] is None
    asked = [{"stop": [text[2:4]], "logprobs": 2}, {"presence_penalty": 2, "min_new_tokens": 6}, {}]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": "a", "seed": 0, **a}) for a in asked))
    assert run(target, "--prompt-file", "p.jsonl", "--json", "--no-chat", "sampling.ignore_eos=true") == 0
    stopped, penalised, same = lines(capsys)
    assert (stopped["text"], stopped["stopped_by"], stopped["finish_reason"]) == (text[:2], text[2:4], "stop")
    told = stopped["logprobs"]
    assert isinstance(told, list)
    assert [t["token_id"] for t in told] == stopped["token_ids"]
    assert all(t["top"][0] == [t["token_id"], t["logprob"]] for t in told), "greedy"
    assert len(set(penalised["token_ids"])) == 6  # type: ignore[call-overload]
    assert same["token_ids"] == free["token_ids"]
    capsys.readouterr()
    assert run(bare, "--prompt-ids", "3", "sampling.stop=[x]") == 2
    assert "stop wants a tokenizer" in " ".join(capsys.readouterr().err.split())


def test_prompt_ids_need_no_tokenizer_but_text_does(bare: str, capsys: Capture) -> None:
    assert run(bare, "--prompt-ids", "3,4") == 0
    assert "," in capsys.readouterr().out
    assert run(bare, "--prompt", "hello") == 2
    assert "--prompt-ids" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], ["--prompt TEXT"]),
        (["--prompt-ids", "1,x", "--prompt-ids", "2,,3"], ["1,x", "2,,3"]),
        (["--prompt-ids", "64"], ["[0, 64)"]),
        (["--prompt-file", "absent.txt"], ["absent.txt"]),
        (["--prompt", "a", "sampling.temperature=-1", "sampling.top_p=0"], ["temperature", "top_p"]),
        (["--prompt", "a", "spec=chain"], ["draft.checkpoint"]),
        (["--prompt", "a", "runtime.device=cuda:7"], ["runtime.device"]),
        (["--prompt", "a", "target.checkpoint=no/where/at/all"], ["no such folder"]),
    ],
)
def test_mistakes_are_told_in_one_block(target: str, words: list[str], told: list[str], capsys: Capture) -> None:
    assert run(target, *words) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "Traceback" not in seen.err
    for part in told:
        assert part in seen.err


def test_bad_sampling_in_a_file_is_told_before_anything_runs(target: str, capsys: Capture, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "top_p": 7}, {"prompt": "b"}, {"prompt_ids": [99]}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(target, "--prompt-file", "p.jsonl") == 2
    err = capsys.readouterr().err
    assert "from p.jsonl:1" in err
    assert "from p.jsonl:3" in err


def unbuilt(*_: object) -> None:
    raise AssertionError("nothing must be loaded")


def test_every_fault_of_a_file_is_told_with_its_line_before_the_build(
    target: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.build.engine.build_engine", unbuilt)
    asked = [{"presence_penalty": 5}, {"top_k": "x"}, {"max_new_tokens": 0, "stop": [""]}, {"n": 1}, {"n": 2}]
    (tmp_path / "bad.jsonl").write_text("\n".join(json.dumps({"prompt": "a", **own}) for own in asked))
    assert run(target, "--prompt-file", "bad.jsonl", "sampling.top_p=7") == 2
    err = capsys.readouterr().err
    assert "2 problems" in err, "a configuration that breaks rules judges no prompts"
    assert "bad.jsonl:2" in err
    assert "sampling.top_p" in err
    assert run(target, "--prompt-file", "bad.jsonl") == 2
    err = capsys.readouterr().err
    assert "5 problems" in err
    for key, line in (("presence_penalty", 1), ("max_new_tokens", 3), ("stop", 3), ("n", 5)):
        assert re.search(rf"  {key}  .*\n.* from bad\.jsonl:{line}\n", err), key
    assert "  bad.jsonl:2  top_k wants an integer" in err


def test_folders_and_prompts_are_told_at_once(tmp_path: Path) -> None:
    lost = [str(tmp_path / "no-target"), str(tmp_path / "no-head")]
    plain = ("conf=base", "target.checkpoint=t", "draft=eagle3", "draft.checkpoint=h", "spec=chain")
    made = changed((*plain, "spec.max_draft_len=3"), target__checkpoint=lost[0], draft__checkpoint=lost[1])
    options = Options((Prompt(ids=(1,), sampling={"top_p": 7}),), None, False, False, False, False)
    with pytest.raises(ConfigError) as raised:
        task(options, made)
    told = [(problem.key, problem.value) for problem in raised.value.problems]
    assert told == [("target.checkpoint", lost[0]), ("draft.checkpoint", lost[1]), ("top_p", 7)]


def test_a_broken_head_hides_no_fault_of_a_prompt(bare: str, tmp_path: Path) -> None:
    (tmp_path / "head").write_text("a file")
    plain = ("conf=base", "target.checkpoint=t", "draft=eagle3", "draft.checkpoint=h", "spec=chain")
    given = {"target__checkpoint": bare, "draft__checkpoint": str(tmp_path / "head")}
    options = Options((Prompt(ids=(9999999,)), Prompt(text="a")), None, False, False, False, False)
    with pytest.raises(ConfigError) as raised:
        task(options, changed((*plain, "spec.max_draft_len=3"), **given))
    assert [problem.key for problem in raised.value.problems] == ["draft.checkpoint", "prompt", "prompt"]


@pytest.mark.parametrize("files", [True, False])
def test_text_without_a_tokenizer_is_told_before_the_build(
    bare: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch, files: bool
) -> None:
    monkeypatch.setattr("eagle3.build.engine.build_engine", unbuilt)
    target = ["conf=base", f"target.checkpoint={bare}"] if files else ["conf=tiny"]
    (Path("p.jsonl")).write_text('{"prompt_ids": [1], "stop": ["x"]}\n{"prompt_ids": [9999999]}\n')
    assert main(["generate", *target, "--prompt", "hello", "--prompt-file", "p.jsonl"]) == 2
    err = capsys.readouterr().err
    assert "3 problems" in err
    for words in ("has no tokenizer: give", "from prompt 0", "stop wants a tokenizer", "from p.jsonl:1", "p.jsonl:2"):
        assert words in " ".join(err.split())


def test_a_prompt_that_cannot_fit_is_refused_alone(target: str, capsys: Capture) -> None:
    long = ",".join(["3"] * 100)
    assert run(target, "--prompt-ids", long, "--prompt-ids", "3,4", "--json") == 1
    seen = capsys.readouterr()
    first, second = (json.loads(line) for line in seen.out.splitlines())
    assert (first["finish_reason"], second["finish_reason"]) == ("error", "stop")
    assert "1 of 2 prompts" in seen.err


def test_interrupting_prints_what_is_done(target: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3.engine.runner import Runner

    steps, real = [], Runner.run

    def tired(runner: Runner, plan: object) -> object:
        steps.append(plan)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return real(runner, plan)  # type: ignore[arg-type]

    monkeypatch.setattr(Runner, "run", tired)
    assert run(target, "--prompt-ids", "3", "--prompt-ids", "4", "--json", "sampling.ignore_eos=true") == 130
    assert [line["finish_reason"] for line in lines(capsys)] == ["abort", "abort"]


def test_dummy_weights_need_no_files(capsys: Capture) -> None:
    small = ["num_hidden_layers=2", "vocab_size=100", "hidden_size=64", "intermediate_size=64"]
    facts = [f"target.architecture.{fact}" for fact in small]
    heads = ["target.architecture.num_attention_heads=4", "target.architecture.num_key_value_heads=2"]
    words = [
        "generate",
        "draft=none",
        "spec=none",
        "target.load_format=dummy",
        *facts,
        *heads,
        "--prompt-ids",
        "1,2",
        "--json",
    ]
    assert main([*words, "sampling.max_new_tokens=3"]) == 0
    (line,) = lines(capsys)
    assert len(line["token_ids"]) == 3  # type: ignore[arg-type]


def test_facts_that_the_checkpoint_contradicts_are_an_error(target: str, capsys: Capture) -> None:
    assert main(["generate", f"target.checkpoint={target}", "target.sha256=null", "--prompt", "a"]) == 2
    err = capsys.readouterr().err
    assert "num_hidden_layers: 30 here, 8 there" in err


def test_a_sweep_reports_tokens_a_second_and_a_failing_cell(target: str, capsys: Capture, tmp_path: Path) -> None:
    words = ["--prompt-ids", "3,4", "-m", "runtime.max_seq_len=100,2", "kv.tokens_per_block=4,16"]
    assert run(target, *words) == 1
    results = [json.loads(p.read_text()) for p in sorted(tmp_path.rglob("result.json"))]
    assert sorted(r["status"] for r in results) == ["done", "done", "failed", "failed"]
    assert all(r["value"] > 0 for r in results if r["status"] == "done")
    out, err = capsys.readouterr()
    assert "max_seq_len" in err
    assert [line[:5] for line in out.splitlines() if line.startswith("job ")] == [f"job {i}" for i in range(4)]


@pytest.mark.usefixtures("new_workers")
def test_a_sweep_runs_under_joblib(target: str, tmp_path: Path) -> None:
    words = ["--prompt-ids", "3,4", "sampling.seed=0,1", "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert run(target, *words) == 0
    results = [json.loads(p.read_text()) for p in tmp_path.rglob("result.json")]
    assert [r["status"] for r in results] == ["done"] * 2


def test_optuna_takes_the_rate_as_its_objective(target: str, tmp_path: Path) -> None:
    sweep = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.direction=maximize"]
    words = ["--prompt-ids", "3,4", "-m", "kv.tokens_per_block=choice(4,16)"]
    assert run(target, *words, *sweep) == 0
    (best,) = tmp_path.rglob("optimization_results.yaml")
    assert "best_value" in best.read_text()
