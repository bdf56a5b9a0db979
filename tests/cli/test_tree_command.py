"""`eagle3 tree`: what is shown of a step, on a pair whose trees are foretold."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.cli import main
from eagle3.cli.tree import watched
from eagle3.config.shape import DraftShape
from helpers.cycle_files import TREE, write_cycle
from helpers.pairs import LAYERS, engine, random_pair

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_cycle(tmp_path_factory.mktemp("pair"), bad=(9,), tokenizer=True)


def shown(capsys: Capture) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_the_accepted_path_and_the_bonus(pair: list[str], capsys: Capture) -> None:
    assert main(["tree", *pair, *TREE, "--prompt-ids", "20", "--json"]) == 0
    told = shown(capsys)
    nodes = told["nodes"]
    assert len(nodes) == 7
    assert nodes[0] == {**nodes[0], "token": 21, "parent": None, "depth": 0, "score": None, "accepted": True}
    path = [n for n in nodes if n["accepted"]]
    assert [n["token"] for n in path] == [21, 22, 23, 24]
    assert [n["depth"] for n in path] == [0, 1, 2, 3]
    assert [n["parent"] for n in path[1:]] == [n["node"] for n in path[:-1]]
    assert told["bonus"] == 25
    for node in nodes[1:]:
        parent = nodes[node["parent"]]
        assert node["depth"] == parent["depth"] + 1
        assert node["score"] <= (parent["score"] or 0.0)


def test_a_wrong_guess_is_not_accepted(pair: list[str], capsys: Capture) -> None:
    assert main(["tree", *pair, *TREE, "--prompt-ids", "4", "--step", "2", "--json"]) == 0
    told = shown(capsys)  # the prompt's 5, a step to 9, and after 9 the head says 11
    assert told["step"] == 2
    assert [n["token"] for n in told["nodes"] if n["accepted"]] == [9]
    assert told["nodes"][1]["token"] == 11
    assert told["bonus"] == 10


def test_the_drawing(pair: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert main(["tree", *pair, "spec=chain", "spec.max_draft_len=2", "--prompt", "b", "--no-chat"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.strip(" └─") for row in rows] == [
        "'c'",
        "'d'  0.00  depth 1  ✓",
        "'e'  0.00  depth 2  ✓",
        "'f'  bonus",
    ]


def test_scores_are_the_heads_own_log_probabilities() -> None:
    target, head = random_pair(8)
    shape = DraftShape(depth=2, top_k=8, nodes=1 + 8 + 64)  # every token after every token
    nodes = watched(engine(target, (head, LAYERS), shape), [1, 2, 3], 2).nodes
    assert all(n.score is not None for n in nodes[1:])
    for parent in nodes[:9]:
        below = [n for n in nodes if n.parent == parent.node]
        assert sorted(n.token for n in below) == list(range(8))
        assert sum(math.exp(n.score or 0.0) for n in below) == pytest.approx(math.exp(parent.score or 0.0), rel=1e-4)


def test_watching_changes_no_token() -> None:
    target, head = random_pair(8)
    shape = DraftShape(depth=3, top_k=2, nodes=7)
    plain = engine(target, (head, LAYERS), shape).generate([[1, 2, 3]], [{"max_new_tokens": 12}])[0]
    picture = watched(engine(target, (head, LAYERS), shape), [1, 2, 3], 1)
    path = [n.token for n in picture.nodes if n.accepted]
    said = [*path, picture.bonus]
    assert said == plain.token_ids[: len(said)]
    assert torch.tensor([n.depth for n in picture.nodes if n.accepted]).tolist() == list(range(len(path)))


def test_drawn_drafts_have_no_score(pair: list[str], capsys: Capture) -> None:
    words = ["spec=chain", "spec.use_rejection_sampling=true", "sampling=sampled", "--prompt-ids", "20", "--json"]
    assert main(["tree", *pair, *words]) == 0
    told = shown(capsys)
    assert [n["score"] for n in told["nodes"]] == [None] * 5


def test_plain_decoding_is_refused_by_name(pair: list[str], capsys: Capture) -> None:
    plain = [word for word in pair if not word.startswith("draft")]
    assert main(["tree", *plain, "--prompt-ids", "3"]) == 2
    err = capsys.readouterr().err
    assert "spec=tree" in err
    assert "draft=" in err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--prompt-ids", "3", "--step", "9", "sampling.max_new_tokens=6"], 1, "after 2 steps"),
        (["--prompt-ids", "3", "--step", "0"], 2, "--step"),
        (["--prompt-ids", "3", "--prompt-ids", "4"], 2, "one prompt"),
        (["--prompt-ids", "3", "-m", "kv.tokens_per_block=1,2"], 2, "-m"),
        ([], 2, "--prompt-ids"),
        (["--prompt-ids", ",".join(["3"] * 100)], 1, "runtime.max_seq_len"),
    ],
)
def test_mistakes(pair: list[str], words: list[str], code: int, told: str, capsys: Capture) -> None:
    assert main(["tree", *pair, *TREE, *words]) == code
    seen = capsys.readouterr()
    assert seen.out == ""
    assert told in seen.err


def test_a_prompt_that_cannot_be_is_told_before_the_build(
    pair: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.build.engine.build_engine", lambda *_: pytest.fail("nothing must be loaded"))
    assert main(["tree", *pair, *TREE, "--prompt-ids", "64", f"draft.checkpoint={Path(__file__).parent / 'no'}"]) == 2
    err = capsys.readouterr().err
    assert "wants token ids in [0, 64)" in err
    assert "no such folder" in err
    assert "from override draft.checkpoint" in err


def test_no_folder_is_left(pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tree", *pair, *TREE, "--prompt-ids", "3"]) == 0
    assert list(tmp_path.iterdir()) == []
