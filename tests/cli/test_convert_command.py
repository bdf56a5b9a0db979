"""`eagle3 convert`: a head in another dialect, that runs as it did."""

import json
from pathlib import Path

import pytest

from eagle3.cli import main
from eagle3.cli.convert import To
from eagle3.models.head_dialects import DIALECTS
from helpers.cycle_files import write_cycle
from helpers.heads import head_config, head_tensors, write_head

Capture = pytest.CaptureFixture[str]
IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def convert(*words: str) -> int:
    return main(["convert", *words])


def test_the_choices_are_the_dialects() -> None:
    assert [to.value for to in To] == list(DIALECTS)


def test_a_converted_head_accepts_as_before(tmp_path: Path, capsys: Capture) -> None:
    pair = write_cycle(tmp_path, bad=(9,))
    run = ["spec=chain", "spec.max_draft_len=3", "sampling.max_new_tokens=12", "--prompt-ids", "3", "--json"]
    found = []
    for folder, to in (("head", None), ("b", "speculators"), ("c", "modelopt")):
        if to is not None:
            assert convert(*pair, "--to", to, "--out", folder) == 0
        assert main(["generate", *pair, f"draft.checkpoint={tmp_path / folder}", *run]) == 0
        line = json.loads(capsys.readouterr().out.splitlines()[-1])
        found.append((line["token_ids"], line["metrics"]["spec"]["acceptance_histogram"]))
    assert found[0] == found[1] == found[2]
    tokens, histogram = found[0]
    assert len(tokens) == 12
    assert sum(i * n for i, n in enumerate(histogram)) > 6


def test_what_it_tells(tmp_path: Path, capsys: Capture) -> None:
    write_head(tmp_path / "a", config=head_config(num_hidden_layers=40))
    assert convert("draft.checkpoint=a", "--to", "modelopt", "--out", "b") == 0
    seen = capsys.readouterr()
    assert seen.out == "b: 14 tensors, modelopt\n"
    assert "warning: num_hidden_layers is 40 in config.json" in seen.err
    assert "left out: t2d" in seen.err
    assert convert("draft.checkpoint=a", "--to", "speculators", "--out", "c", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["folder"], told["dialect"], told["layers"], told["left_out"]) == ("c", "speculators", None, [])
    assert len(told["tensors"]) == 15


def test_the_head_in_the_box(tmp_path: Path, capsys: Capture) -> None:
    assert convert("--to", "speculators", "--out", "b") == 0
    assert "speculators" in capsys.readouterr().out
    assert json.loads((tmp_path / "b" / "config.json").read_text())["draft_vocab_size"] > 1000


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["draft.checkpoint=a", "--to", "midlayer", "--out", "b"], 2, "midlayer has no words for norm_before_fc"),
        (["draft.checkpoint=a", "--to", "modelopt", "--out", "a"], 2, "is in use: choose a new or an empty folder"),
        (["draft.checkpoint=none", "--to", "modelopt", "--out", "b"], 2, "no such folder"),
        (["conf=base", "target.checkpoint=t", "--to", "modelopt", "--out", "b"], 2, "name the head"),
        (["draft.checkpoint=a", "--to", "sglang", "--out", "b"], 2, "'sglang' is not one of"),
        (["draft.checkpoint=a", "--out", "b"], 2, "--to"),
        (["draft.checkpoint=a", "--to", "modelopt", "--out", "/proc/b"], 1, "cannot be written"),
        (["-m", "draft.checkpoint=a", "--to", "modelopt", "--out", "b"], 2, "-m is for commands that run"),
    ],
)
def test_what_is_refused(tmp_path: Path, capsys: Capture, words: list[str], code: int, text: str) -> None:
    write_head(tmp_path / "a", head_tensors(norm_before_fc=True), head_config(norm_before_fc=True))
    assert convert(*words) == code
    assert text in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "b").exists()


def test_the_targets_conf_tells_what_a_list_means(tmp_path: Path, capsys: Capture) -> None:
    write_head(tmp_path / "a", config=head_config(eagle_config={IDS: [2, 4, 5]}))
    words = ["draft.checkpoint=a", "--to", "speculators", "--out", "b"]
    assert convert(*words) == 2
    assert "choose output or input" in capsys.readouterr().err
    facts = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "vocab_size": 40,
        "max_position_embeddings": 64,
    }
    inline = ",".join(f"{key}:{value}" for key, value in facts.items())
    base = ["conf=base", "target.checkpoint=t", "draft=eagle3", "spec=chain"]
    assert convert(*base, f"target.architecture={{{inline}}}", *words) == 0
    assert json.loads((tmp_path / "b" / "config.json").read_text())[IDS] == [2, 4, 5]
