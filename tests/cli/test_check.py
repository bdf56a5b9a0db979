"""`eagle3 check`, the flags that commands share, and how errors look."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from eagle3 import cli
from eagle3.cli import main
from eagle3.cli.options import takes_overrides
from eagle3.config.flags import HydraFlags
from eagle3.config.units import size
from eagle3.errors import WeightError
from helpers.cycle_files import write_cycle
from helpers.damage import say

FAULTS = ["spec=forest", "kv.tokens_per_block=33", "+runtime.foo=3", "target.dtype=f3", "sampling.sede=3"]


def test_all_shipped_engines_and_recipes_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--all"]) == 0

    out, err = capsys.readouterr()
    assert "✓ conf=smollm2\n" in out
    assert "✓ recipe=sample_temperature\n" in out
    assert "✓ conf=llama70b, not runnable yet: " in out
    assert "tensor parallelism" in out
    assert "✗" not in out + err
    assert "captures" not in out, "headers are looked at for one configuration, not for all"
    told = [line.split()[0] for line in err.splitlines() if line.startswith("  ") and not line.startswith("   ")]
    assert set(told) == {"spec.synthetic_acceptance"}, "no other warning, and that one in recipes that time trees"


def test_a_good_config_shows_its_shape_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "conf=llama8b", "runtime.max_seq_len=200000"]) == 0

    out, err = capsys.readouterr()
    # R = max(N, P + K(D-1)) = max(60, 57)
    assert "shape   D 6 drafts deep, K 10 wide, N 60 rows a request, R 60 entries kept free" in out
    assert "15.0 GiB  target weights" in out or "14.9 GiB  target weights" in out
    assert "logits workspace" in out
    assert "runtime.max_seq_len  is beyond the target's max_position_embeddings (131072)" in err


def test_every_fault_is_told_with_key_value_wanted_and_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *FAULTS]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert "5 problems" in err
    assert "kv.tokens_per_block  must be a power of two, 1 to 128" in err
    assert "seen 33, from override kv.tokens_per_block=33" in err
    assert 'seen "forest", from override spec=forest' in err
    assert "did you mean sampling.seed?" in err
    assert "Traceback" not in err


def test_json_is_all_there_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", *FAULTS]) == 2
    bad = json.loads(capsys.readouterr().out)
    assert main(["check", "--json", "conf=llama8b"]) == 0
    good = json.loads(capsys.readouterr().out)

    assert bad["ok"] is False
    assert {problem["key"] for problem in bad["configs"][0]["problems"]} == {
        "spec",
        "kv.tokens_per_block",
        "runtime.foo",
        "target.dtype",
        "sampling.sede",
    }
    assert good["ok"] is True
    assert good["configs"][0]["shape"] == {"D": 6, "K": 10, "N": 60, "R": 60}
    assert good["configs"][0]["memory_bytes"]["logits workspace"] == 8 * 60 * 128256 * 4
    assert good["configs"][0]["not_runnable"] == []
    assert main(["check", "--json", "conf=llama70b"]) == 0
    late = json.loads(capsys.readouterr().out)
    assert late["configs"][0]["not_runnable"][0].startswith("tensor parallelism")


def test_github_annotations_name_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "conf" / "mine.yaml"
    own.parent.mkdir()
    own.write_text("# @package _global_\ndefaults: [smollm2, _self_]\nkv: {tokens_per_block: 33}\n")

    assert main(["check", "-cd", str(tmp_path), "conf=mine", "--format", "github"]) == 2

    line = capsys.readouterr().out
    assert line.startswith(f"::error file={own},title=kv.tokens_per_block::conf=mine: kv.tokens_per_block: must be")


@pytest.mark.parametrize(
    "argv",
    [
        ["kv.tokens_per_block=33", "--json", "sampling.seed=-1"],
        ["--json", "kv.tokens_per_block=33", "sampling.seed=-1"],
        ["kv.tokens_per_block=33", "sampling.seed=-1", "--json"],
    ],
)
def test_flags_and_overrides_in_any_order(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *argv]) == 2

    told = json.loads(capsys.readouterr().out)["configs"][0]["problems"]
    assert [problem["key"] for problem in told] == ["kv.tokens_per_block", "sampling.seed"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["check", "--unknown", "conf=llama8b"], "--unknown"),
        (["check", "--config-path", "x"], "--config-dir"),
        (["check", "-m", "kv.tokens_per_block=1,2"], "one configuration"),
        (["check", "--cfg", "everything"], "everything"),
        (["chekc"], "chekc"),
    ],
)
def test_usage_errors_end_with_2(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_every_shared_flag_arrives_in_any_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[HydraFlags, list[str], int]] = []

    def command(flags: HydraFlags, overrides: list[str], count: int = 0) -> int:
        seen.append((flags, overrides, count))
        return 1

    app = typer.Typer()
    app.command()(takes_overrides(command))
    app.callback()(lambda: None)
    monkeypatch.setattr(cli, "app", app)

    argv = ["a=1", "-m", "b=2", "--cfg", "job", "-p", "spec", "~c", "--resolve", "+d=3", "--count", "4"]
    argv += ["-cd", str(tmp_path), "-cn", "root", "--info", "defaults-tree", "e='x y'"]
    assert main(["command", *argv]) == 1

    flags, overrides, count = seen[0]
    assert flags == HydraFlags(True, "job", True, "spec", "defaults-tree", tmp_path, "root")
    assert overrides == ["a=1", "b=2", "~c", "+d=3", "e='x y'"]
    assert count == 4


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [(WeightError("no tensor x"), 2, "WeightError: no tensor x"), (KeyboardInterrupt(), 130, "")],
)
def test_errors_become_exit_codes(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = typer.Typer()

    @app.command()
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)

    assert main([]) == code
    assert message in capsys.readouterr().err


def test_the_trace_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    with pytest.raises(Exception, match="power of two"):
        main(["show", "kv.tokens_per_block=33"])


def test_help_and_check_import_nothing_heavy() -> None:
    program = (
        "import sys; from eagle3.cli import main; code = main(sys.argv[1:]); "
        "names = ('torch', 'transformers', 'triton', 'hydra', 'omegaconf'); "
        "print(code, [name for name in names if name in sys.modules])"
    )

    def last_line(*argv: str) -> str:
        ran = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True, check=True)
        return ran.stdout.splitlines()[-1]

    assert last_line("--help") == "0 []"
    assert last_line("check", "--help") == "0 []"
    assert last_line("check", "conf=llama8b", "--gpu-memory", "80GiB") == "0 ['hydra', 'omegaconf']"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0

    assert capsys.readouterr().out.startswith("eagle3 ")


def test_a_memory_is_checked_against(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "conf=llama8b", "--gpu-memory", "14GiB"]) == 2
    seen = capsys.readouterr().err
    assert "target.checkpoint  takes 15.7 GiB of weights with its head, of 14.0 GiB" in seen
    assert main(["check", "conf=llama8b", "--gpu-memory", "80GB"]) == 0
    out = capsys.readouterr().out
    assert "  GPU       weights, logits and captures take 16.0 GiB of 74.5 GiB; then 418024 KV entries, 100 req" in out
    assert "  not here  meta-llama/Llama-3.1-8B-Instruct" in out
    assert main(["check", "--gpu-memory", "much"]) == 2
    assert "--gpu-memory must be a size such as 80GiB" in capsys.readouterr().err


def test_what_files_tell_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = [*write_cycle(tmp_path), "spec=chain", "spec.max_draft_len=3", "sampling.max_new_tokens=20"]
    capsys.readouterr()
    assert main(["check", *pair]) == 0
    out, err = capsys.readouterr()
    assert (
        "  captures    outputs of layers [1, 3, 4] = inputs of layers [2, 4, 5], the default; hidden_states [2, 4"
        in out
    )
    assert "  vocabulary  identity map (full vocabulary)" in out
    assert "  positions   the head was made for 64, requests may grow to 100: extend" in out
    assert "target weights" in out, "a sum over the files' facts"
    assert err == ""

    config = tmp_path / "head" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 32, "odd": 1}))
    config = tmp_path / "target" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_key_value_heads": 1}))
    assert main(["check", "--json", *pair]) == 2
    (told,) = json.loads(capsys.readouterr().out)["configs"]
    problems = {problem["key"]: problem for problem in told["problems"]}
    assert problems.keys() == {"target.checkpoint", "draft.checkpoint"}
    assert "num_key_value_heads is 1 · head_dim 16, but" in problems["target.checkpoint"]["wanted"]
    assert "vocab_size is 32, but the target has 64 tokens" in problems["draft.checkpoint"]["wanted"]
    assert problems["draft.checkpoint"]["origin"] == f"override draft.checkpoint={tmp_path / 'head'}"
    assert [warning["wanted"] for warning in told["warnings"]] == [
        "config.json has unknown fields that are not used: odd"
    ]
    assert main(["generate", *pair, "--prompt-ids", "3"]) == 2
    err = capsys.readouterr().err
    assert "2 problems in the configuration" in err
    assert "another tokenizer?" in err

    say(draft_vocab_size=16)(tmp_path / "head")
    assert main(["check", *pair, f"target.checkpoint={tmp_path / 'lost'}"]) == 2
    err = capsys.readouterr().err
    for words in ("draft_vocab_size is 16, but", "not judged: the head against the target", "no such folder on this"):
        assert words in err


def test_sizes_have_units() -> None:
    assert [size(n) for n in (5, 1024, 3 * 2**29, 2**40)] == ["5 B", "1.0 KiB", "1.5 GiB", "1.0 TiB"]
