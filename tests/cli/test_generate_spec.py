"""`eagle3 generate` with a head, on a pair that accepts as foretold: numbers, colours, verification."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.cli import main
from eagle3.engine.rescore import Rescore
from helpers.cycle_files import TREE, write_cycle

Capture = pytest.CaptureFixture[str]
CHAIN = ["spec=chain", "spec.max_draft_len=3"]
GREEN, RESET = "\x1b[32m", "\x1b[0m"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_cycle(tmp_path_factory.mktemp("pair"), bad=(9,))


@pytest.fixture(scope="module")
def lettered(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_cycle(tmp_path_factory.mktemp("lettered"), tokenizer=True)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def run(pair: list[str], *words: str) -> int:
    return main(["generate", *pair, "sampling.max_new_tokens=12", *words])


def lines(out: str) -> list[dict[str, Any]]:
    """Stdout, all of which must be JSON lines without NaN."""

    def never(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=never) for line in out.splitlines()]


def test_each_line_carries_its_own_numbers_and_stderr_the_total(pair: list[str], capsys: Capture) -> None:
    assert run(pair, *CHAIN, "--prompt-ids", "20", "--prompt-ids", "3,4", "--json") == 0
    seen = capsys.readouterr()
    smooth, bumpy = (line["metrics"]["spec"] for line in lines(seen.out))
    assert smooth["acceptance_histogram"] == [0, 0, 0, 3]  # the prompt's token, then 4 + 4 + 3 of 4
    assert bumpy["acceptance_histogram"] == [1, 0, 0, 3]  # 5, 6…9, 10 after which nothing else was guessed, …
    assert (bumpy["num_spec_steps"], bumpy["num_draft_tokens"], bumpy["num_accepted_draft_tokens"]) == (4, 12, 9)
    assert bumpy["mean_acceptance_length"] == 3.25
    assert bumpy["draft_acceptance_rate"] == 0.75
    assert bumpy["per_position_acceptance_rate"] == [0.75] * 3
    assert bumpy["conditional_acceptance_rate"] == [0.75, 1, 1]
    assert bumpy["acceptance_valid"] is True
    assert "accepted_per_step" not in bumpy
    assert "tau 3.57 over 7 steps (histogram 1 0 0 6)" in seen.err


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_steps_are_traced_when_asked(pair: list[str], shape: list[str], capsys: Capture) -> None:
    assert run(pair, *shape, "--prompt-ids", "3,4", "--json", "--trace-steps") == 0
    (line,) = lines(capsys.readouterr().out)
    assert line["metrics"]["spec"]["accepted_per_step"] == [3, 0, 3, 3]
    assert line["metrics"]["spec"]["num_draft_tokens"] == 4 * (3 if shape is CHAIN else 6)


def test_plain_decoding_has_null_and_no_total(pair: list[str], capsys: Capture) -> None:
    plain = [word for word in pair if not word.startswith("draft")]
    assert run(plain, "--prompt-ids", "3", "--json") == 0
    seen = capsys.readouterr()
    assert lines(seen.out)[0]["metrics"]["spec"] is None
    assert "tau" not in seen.err


def test_forced_acceptance_is_told(pair: list[str], capsys: Capture) -> None:
    assert run(pair, *CHAIN, "spec.synthetic_acceptance=2", "--prompt-ids", "3", "--json") == 0
    seen = capsys.readouterr()
    assert lines(seen.out)[0]["metrics"]["spec"]["acceptance_valid"] is False
    assert "not valid for acceptance" in seen.err


def test_accepted_drafts_are_green_where_colours_are_wanted(
    lettered: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*TREE, "--prompt", "b", "--no-chat", "--show-accepted")
    assert run(lettered, *words) == 0
    assert capsys.readouterr().out == "cdefghijklmn\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(lettered, *words) == 0
    green = [f"{GREEN}{letters}{RESET}" for letters in ("def", "hij", "lmn")]
    assert capsys.readouterr().out == f"c{green[0]}g{green[1]}k{green[2]}\n"
    assert run(lettered, *words[:-1]) == 0
    assert capsys.readouterr().out == "cdefghijklmn\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(lettered, *words) == 0
    assert capsys.readouterr().out == "cdefghijklmn\n"


def test_ids_are_coloured_too(pair: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(pair, *CHAIN, "--prompt-ids", "20", "--show-accepted", "sampling.max_new_tokens=5") == 0
    green = [f"{GREEN}{token}{RESET}" for token in (22, 23, 24)]
    assert capsys.readouterr().out == ",".join(["21", *green, "25"]) + "\n"


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_answers_are_verified(pair: list[str], sampling: str, capsys: Capture) -> None:
    words = (*TREE, f"sampling={sampling}", "--prompt-ids", "3", "--prompt-ids", "4,5", "--verify")
    assert run(pair, *words, "--json") == 0
    seen = capsys.readouterr()
    right = {"ok": True, "position": None, "token": None, "target_token": None, "gap": None}
    assert [line["verify"] for line in lines(seen.out)] == [right] * 2
    assert "verify: 0 of 2 answers differ" in seen.err


def test_what_verification_finds_is_told_and_does_not_fail(pair: list[str], capsys: Capture) -> None:
    # forced acceptance takes the wrong guess after 9 for the target's own
    words = (*CHAIN, "spec.synthetic_acceptance=4", "--prompt-ids", "3", "--prompt-ids", "20", "--verify")
    assert run(pair, *words, "--json") == 0
    seen = capsys.readouterr()
    wrong, right = (line["verify"] for line in lines(seen.out))
    assert right["ok"] is True
    assert (wrong["ok"], wrong["position"], wrong["token"], wrong["target_token"]) == (False, 6, 11, 10)
    assert "verify: 1 of 2 answers differ" in seen.err
    assert "prompt 0: token 6 of the answer is 11, the target says 10" in seen.err
    assert run(pair, *words) == 0
    seen = capsys.readouterr()
    assert "verify: 1 of 2 answers differ" in seen.err
    assert "verify" not in seen.out


def test_drawn_drafts_cannot_be_compared(pair: list[str], capsys: Capture) -> None:
    words = (*CHAIN, "spec.use_rejection_sampling=true", "sampling=sampled", "--prompt-ids", "3", "--verify", "--json")
    assert run(pair, *words) == 0
    seen = capsys.readouterr()
    assert lines(seen.out)[0]["verify"]["ok"] is None
    assert "1 cannot be compared" in seen.err


def test_an_interrupted_verification_still_prints_the_answers(
    pair: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle3.engine.engine import Engine

    def tired(*_: object) -> Rescore:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "rescore", tired)
    assert run(pair, *CHAIN, "--prompt-ids", "3", "--verify", "--json") == 130
    (line,) = lines(capsys.readouterr().out)
    assert len(line["token_ids"]) == 12
    assert line["verify"] is None


@pytest.mark.parametrize("words", [["--trace-steps"], ["--show-accepted", "--json"]])
def test_flags_that_say_nothing_together_are_refused(pair: list[str], words: list[str], capsys: Capture) -> None:
    assert run(pair, *CHAIN, "--prompt-ids", "3", *words) == 2
    assert "--json" in capsys.readouterr().err
