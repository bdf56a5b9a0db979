"""`eagle3 data` from the command line, on tiny checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.cli import main
from eagle3.text.tokenizer import Tokenizer
from eagle3.train.samples import read_samples, split_file
from helpers.checkpoints import write_target
from helpers.cycle_files import write_cycle

Capture = pytest.CaptureFixture[str]
PROMPTS = ["hello", "what is it", " what  is it", "abc", "abcd", "count to 9"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_target(tmp_path_factory.mktemp("target"), tokenizer=True))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("\n".join(PROMPTS))
    rows = [{"prompt_ids": [3, n]} for n in range(4, 12)]
    (tmp_path / "ids.jsonl").write_text("\n".join(map(json.dumps, rows)))


def run(checkpoint: str, *words: str) -> int:
    quick = ["runtime.max_seq_len=60", "--max-new-tokens", "8"]
    return main(["data", "conf=base", f"target.checkpoint={checkpoint}", *quick, *words])


def summary(capsys: Capture) -> dict[str, Any]:
    """The one JSON object on stdout."""
    (line,) = capsys.readouterr().out.splitlines()
    told: dict[str, Any] = json.loads(line)
    return told


def files(out: str) -> list[bytes]:
    return [split_file(Path(out), split).read_bytes() for split in ("train", "eval")]  # type: ignore[arg-type]


def test_answers_are_the_engines_own(target: str, capsys: Capture) -> None:
    assert run(target, "--out", "o", "--prompt-file", "p.txt", "--temperature", "0", "--json", "--batch", "2") == 0
    told = summary(capsys)
    assert told["out"] == str(Path("o").absolute())
    assert told["sources"]["p.txt"]["duplicate"] == 1
    assert told["train"]["samples"] + told["eval"]["samples"] == 5
    assert told["eval"]["samples"] >= 1
    words = [
        "generate",
        "conf=base",
        f"target.checkpoint={target}",
        "runtime.max_seq_len=60",
        "--prompt-file",
        "p.txt",
    ]
    assert main([*words, "sampling.max_new_tokens=8", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    wanted = {(*line["prompt_token_ids"], *line["token_ids"]): len(line["prompt_token_ids"]) for line in lines}
    every = read_samples(Path("o"), "train") + read_samples(Path("o"), "eval")
    # the two prompts that differ by white space alone are two to `generate`
    assert len(every) == 5
    for sample in every:
        assert sample.answers == ((wanted[sample.ids], len(sample.ids)),)


def test_it_goes_on_after_an_interrupt(target: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3.engine.runner import Runner

    words = ["--prompt-file", "p.txt", "--set", "self:1", "--batch", "2"]
    assert run(target, "--out", "whole", *words) == 0
    steps, real = [], Runner.run

    def tired(runner: Runner, plan: object) -> object:
        steps.append(plan)
        if len(steps) == 50:
            raise KeyboardInterrupt
        return real(runner, plan)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run", tired)
        assert run(target, "--out", "o", *words) == 130
    seen = capsys.readouterr().err
    assert "the same command goes on" in seen
    assert not Path("o/meta.json").exists()
    done = Path("o/parts/answers.jsonl").read_bytes().count(b"\n")
    assert 0 < done < Path("whole/parts/answers.jsonl").read_bytes().count(b"\n")
    with Path("o/parts/answers.jsonl").open("ab") as file:
        file.write(b'{"key":"torn')
    assert run(target, "--out", "o", *words) == 0
    assert files("o") == files("whole")


def test_drafting_changes_nothing(tmp_path: Path, capsys: Capture) -> None:
    pair = write_cycle(tmp_path / "pair", bad=(9,))
    for out, more in (("plain", []), ("chain", ["spec=chain", "spec.max_draft_len=3"])):
        words = [
            "data",
            *pair,
            *more,
            "--out",
            out,
            "--prompt-file",
            "ids.jsonl",
            "--max-new-tokens",
            "12",
            "--batch",
            "2",
        ]
        assert main([*words, "--eval-share", "0.3"]) == 0
    assert files("plain") == files("chain")
    assert "train: " in capsys.readouterr().out


def test_random_weights_take_ids_and_no_text(capsys: Capture) -> None:
    words = ["data", "conf=tiny", "--max-new-tokens", "4", "--json", "--out", "o"]
    assert main([*words, "--prompt-file", "ids.jsonl", "--temperature", "1", "--temperature", "1"]) == 0
    told = summary(capsys)
    assert told["train"]["samples"] + told["eval"]["samples"] == 16
    assert told["target"]["tokenizer"] is None
    assert main([*words, "--prompt-file", "p.txt"]) == 2
    assert "has no tokenizer" in capsys.readouterr().err
    assert main([*words, "--set", "self:2"]) == 2
    assert "has no tokenizer" in capsys.readouterr().err


def test_what_is_held_out_is_not_asked(target: str, capsys: Capture) -> None:
    Path("held.txt").write_text("HELLO!\n")
    words = ["--prompt-file", "p.txt", "--hold-out", "held.txt", "--temperature", "0", "--json"]
    assert run(target, "--out", "o", *words) == 0
    told = summary(capsys)["sources"]["p.txt"]
    assert (told["held_out"], told["kept"]) == (1, 4)


def test_the_configuration_asks_where_no_flag_does(target: str, capsys: Capture) -> None:
    Path("held.txt").write_text("hello\n")
    asked = ["data.prompt_files=[p.txt]", "data.hold_out=[held.txt]", "data.temperatures=[0]", "data.chat=false"]
    words = ["conf=base", f"target.checkpoint={target}", "runtime.max_seq_len=60", *asked, "data.batch=3", "--json"]
    assert main(["data", *words, "train.data=o", "data.max_new_tokens=5", "data.eval_share=0.5", "data.seed=4"]) == 0
    told = summary(capsys)
    assert told["out"] == str(Path("o").absolute())
    assert (told["prompt_files"], told["sets"], told["hold_out"]) == (["p.txt"], [], ["held.txt"])
    assert (told["temperatures"], told["max_new_tokens"], told["eval_share"], told["seed"]) == ([0.0], 5, 0.5, 4)
    every = read_samples(Path("o"), "train") + read_samples(Path("o"), "eval")
    assert max(sample.written for sample in every) == 5
    assert min(sample.answers[0][0] for sample in every) == len("abc"), "no template around it"
    flags = [
        "--out",
        "p",
        "--max-new-tokens",
        "4",
        "--temperature",
        "1",
        "--prompt-file",
        "it's ${a}, b\\.txt",
        "--chat",
    ]
    Path("it's ${a}, b\\.txt").write_text("why\nwho")
    assert main(["data", *words, "train.data=o", "data.max_new_tokens=0", *flags]) == 0
    told = summary(capsys)
    assert told["out"] == str(Path("p").absolute())
    assert (told["prompt_files"], told["hold_out"]) == (["it's ${a}, b\\.txt"], ["held.txt"])
    assert (told["temperatures"], told["max_new_tokens"], told["chat"]) == ([1.0], 4, True)


def test_all_mistakes_are_told_at_once(target: str, capsys: Capture) -> None:
    assert run(target, "--prompt-file", "absent.txt", "--set", "mtbench", "--hold-out", "lost") == 2
    seen = capsys.readouterr().err
    for words in ("4 problems", "--out FOLDER or train.data=FOLDER", "absent.txt", "'mtbench'", "'lost'"):
        assert words in seen
    assert (
        run(target, "--out", "o", "--set", "self:x", "--temperature", "nan", "--eval-share", "1", "--seed", "-1") == 2
    )
    assert "4 problems" in capsys.readouterr().err
    assert not Path("o").exists()


def test_a_longer_answer_than_there_is_room_for_is_a_warning(target: str, capsys: Capture) -> None:
    assert run(target, "--out", "o", "--prompt-file", "p.txt", "--temperature", "0", "--max-new-tokens", "60") == 0
    assert "data.max_new_tokens  will be cut" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--prompt-file", "p.txt"], "--out"),
        (["--out", "o"], "--prompt-file FILE or --set NAME:COUNT"),
        (["--out", "o", "--set", "mtbench:3"], "unknown set 'mtbench'"),
        (["--out", "o", "--set", "self:0"], "self:COUNT"),
        (["--out", "o", "--prompt-file", "empty.txt"], "has no prompts"),
        (["--out", "o", "--prompt-file", "own.jsonl"], "--temperature"),
        (["--out", "o", "--prompt-file", "p.txt", "--hold-out", "p.txt"], "none is left"),
        (["--out", "o", "--prompt-file", "p.txt", "--hold-out", "absent"], "unknown set 'absent'"),
        (["--out", "o", "--prompt-file", "p.txt", "--temperature", "-1"], "0 or numbers from"),
        (["--out", "o", "--prompt-file", "p.txt", "--temperature", "0", "--temperature", "0"], "at most once"),
        (["--out", "o", "--prompt-file", "p.txt", "--eval-share", "0.9"], "at most 0.5"),
        (["--out", "o", "--prompt-file", "p.txt", "--eval-share", "0"], "data.eval_share  must be above 0"),
        (["--out", ".", "--prompt-file", "p.txt"], "no data of ours"),
        (["--out", "o", "--prompt-file", "high.jsonl"], "[0, 64)"),
        (["--out", "o", "--prompt-file", "absent.txt"], "data.prompt_files  absent.txt: cannot be read"),
        (["--out", "o", "--set", "stdlib:x"], "from override data.sets=['stdlib:x']"),
        (["train.data=o", "data.sets=['self:1']", "data.hold_out=[absent]"], "from override data.hold_out=[absent]"),
        (["--out", "o", "--prompt-file", "p.txt", "--batch", "0"], "data.batch  must be in"),
        (
            ["--out", "o", "--prompt-file", "p.txt", "--batch", "9", "runtime.cuda_graph_batch_sizes=[8]"],
            "runtime.max_batch_size (9)",
        ),
        (["--out", "o", "--prompt-file", "p.txt", "-m", "seed=1,2"], "of a sweep"),
    ],
)
def test_mistakes_are_told_in_one_block(target: str, words: list[str], told: str, capsys: Capture) -> None:
    Path("empty.txt").write_text("\n \n")
    Path("own.jsonl").write_text('{"prompt": "a", "seed": 3}')
    Path("high.jsonl").write_text('{"prompt_ids": [64]}')
    assert run(target, *words) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "Traceback" not in seen.err
    assert told in seen.err


def test_a_folder_of_another_target_is_refused(target: str, capsys: Capture, tmp_path: Path) -> None:
    words = ["--out", "o", "--prompt-file", "ids.jsonl"]
    assert run(target, *words) == 0
    before = files("o")
    other = str(write_target(tmp_path / "other", tokenizer=True, seed=1))
    assert run(other, *words) == 2
    assert "holds data of another target: checkpoint" in capsys.readouterr().err
    assert files("o") == before


@pytest.mark.real
def test_the_real_target_asks_itself(smollm2: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3.train.data_answers.QUESTION_TOKENS", 40)
    words = ["data", "--out", "o", "--set", "self:1", "--temperature", "0", "--max-new-tokens", "2", "--batch", "8"]
    assert main([*words, "--seed", "3", "runtime.device=cpu", "runtime.max_seq_len=320", "--json"]) == 0
    assert summary(capsys)["sources"]["self"]["kept"] == 1
    (sample,) = read_samples(Path("o"), "train")
    text = Tokenizer(smollm2).decode(sample.ids[: sample.answers[0][0]], skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    question = text.partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    assert len(question.split()) > 3
