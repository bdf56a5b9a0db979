"""A head in the package: `draft.checkpoint=eagle3:NAME`."""

import json
from pathlib import Path

import pytest

from eagle3.cli import main
from eagle3.config import files
from eagle3.errors import ConfigError
from eagle3.models.checkpoint import resolve
from helpers.cycle_files import write_cycle

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides of a target whose head lies in the box as `cycle`."""
    monkeypatch.chdir(tmp_path)
    overrides = write_cycle(tmp_path / "pair", bad=(9,))
    box = tmp_path / "box"
    box.mkdir()
    (tmp_path / "pair" / "head").rename(box / "cycle")
    (box / "notes.jsonl").touch()
    monkeypatch.setattr(files, "ASSETS", box)
    rest = [o for o in overrides if not o.startswith("draft.checkpoint")]
    return [*rest, "draft.checkpoint=eagle3:cycle", "spec=chain", "spec.max_draft_len=3"]


def test_the_engine_drafts_with_it(pair: list[str], capsys: Capture) -> None:
    assert main(["generate", *pair, "--prompt-ids", "3,4", "sampling.max_new_tokens=12", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["token_ids"] == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert told["metrics"]["spec"]["num_accepted_draft_tokens"] > 4


def test_pull_prints_its_folder(pair: list[str], capsys: Capture) -> None:
    assert main(["pull", *pair]) == 0
    assert capsys.readouterr().out.splitlines()[1] == str(files.ASSETS / "cycle")


def test_an_unknown_name_is_told_with_those_that_are_there(pair: list[str], capsys: Capture) -> None:
    assert main(["check", *pair, "draft.checkpoint=eagle3:circle", "kv.tokens_per_block=3"]) == 2
    seen = capsys.readouterr()
    assert "not in the box; known: eagle3:cycle" in seen.out + seen.err
    assert "kv.tokens_per_block" in seen.out + seen.err
    with pytest.raises(ConfigError, match="eagle3:circle is not in the box; known: eagle3:cycle"):
        resolve("eagle3:circle")


def test_what_is_in_the_box_has_no_revision_and_is_no_target(pair: list[str], capsys: Capture) -> None:
    assert main(["check", *pair, "draft.revision=main", "target.checkpoint=eagle3:cycle"]) == 2
    seen = capsys.readouterr()
    assert "is for hub ids only" in seen.out + seen.err
    assert "only heads are in the box" in seen.out + seen.err
