"""The shell's completion, asked as the shells' scripts ask it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from eagle3.cli import main
from eagle3.config.catalogue import catalogue
from eagle3.config.completion import choices, completions, values
from eagle3.config.schema import EngineConfig
from eagle3.config.typed import LEAVES

Bash = Callable[..., list[str]]


@pytest.fixture
def bash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bash:
    """What Bash is offered for the last of these words, which it has cut at each `=`."""

    def asked(*words: str) -> list[str]:
        monkeypatch.setenv("_EAGLE3_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(["eagle3", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert main([]) == 0
        return capsys.readouterr().out.split()

    return asked


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["check", "spec", "=", "tr"], ["tree"]),
        (["check", "spec", "="], ["chain", "chain3", "none", "tree"]),
        (["generate", "--prompt", "hi", "-m", "spec", "=", "chain,n"], ["chain,none"]),
        (["check", "conf", "=", "tiny", "samp"], ["sampling=", "sampling."]),
        (["check", "kv.draft_pool", "="], ["separate", "joint"]),
        (["check", "kv.tok"], ["kv.tokens_per_block=", "kv.tokens_per_block=32"]),
        (["show", "recipe", "=", "h200_st"], ["h200_start", "h200_steps"]),
        (["check", "nothing"], []),
        (["chec"], ["check"]),
    ],
)
def test_bash(bash: Bash, words: list[str], offered: list[str]) -> None:
    assert bash(*words) == offered


def test_files_of_ones_own(bash: Bash, tmp_path: Path) -> None:
    for name in ("conf/mine", "spec/wide", "recipe/night"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.yaml").write_text("")
    flag = ["check", "-cd", str(tmp_path)]
    assert bash(*flag, "conf", "=", "min") == ["mine"]
    assert bash(*flag, "spec", "=", "w") == ["wide"]
    assert bash(*flag, "recipe", "=", "n") == ["night"]
    assert bash("check", "conf", "=", "min") == []
    assert bash("check", "-cd", str(tmp_path / "none"), "conf", "=", "tin") == ["tiny"]


@pytest.mark.parametrize(("line", "offered"), [("spec=tr", ["spec=tree"]), ("spec=chain,t", ["spec=chain,tree"])])
def test_other_shells_keep_a_word_whole(
    line: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_EAGLE3_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"eagle3 check {line}")
    assert main([]) == 0
    assert capsys.readouterr().out.split() == offered


def test_it_is_installed_by_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--install-completion" in capsys.readouterr().out


def test_every_name_leads_to_every_key() -> None:
    names = completions("")
    assert len(names) == len(set(names))
    keys = [key for name in names if name.endswith(".") for key in completions(name)]
    assert sorted(keys) == sorted(f"{leaf}=" for leaf in LEAVES)
    assert all(completions(key[:-1]) for key in keys)


def test_groups_are_those_of_the_catalogue() -> None:
    want: dict[str, list[str]] = {}
    for entry in catalogue():
        want.setdefault(entry.group, []).append(entry.name)
    assert choices() == {group: sorted(names) for group, names in want.items()}


def test_what_is_offered_is_a_value_of_its_key() -> None:
    schema = OmegaConf.structured(EngineConfig)
    plain = [leaf for leaf in LEAVES if ".architecture." not in leaf and values(leaf)]
    for leaf in plain:
        for value in values(leaf):
            OmegaConf.update(schema, leaf, yaml.safe_load(value))
    assert len(plain) > 60
    assert values("spec.decoding_type") == ["none", "eagle3", "mtp"]
    assert values("target.architecture.tie_word_embeddings") == ["false", "true"]
    assert values("target.architecture.hidden_size") == values("no.such_key") == []


def test_it_imports_nothing_heavy() -> None:
    program = (
        "import sys; from eagle3.cli import main; main([]); "
        "print([name for name in ('torch', 'transformers', 'triton') if name in sys.modules])"
    )
    asked = {"_EAGLE3_COMPLETE": "complete_bash", "COMP_WORDS": "eagle3\ncheck\nkv.", "COMP_CWORD": "2"}
    env = {**os.environ, **asked}
    ran = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    *offered, heavy = ran.stdout.splitlines()
    assert "kv.tokens_per_block=" in offered
    assert heavy == "[]"
