"""`eagle3 list`."""

import json
from pathlib import Path

import pytest

from eagle3.cli import main


def test_engines_groups_and_recipes_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "engines"
    assert any(line.startswith("  conf=smollm2") and "(the default)" in line for line in lines)
    assert any(line.startswith("  spec=tree") and "tree of 59 drafts" in line for line in lines)
    assert lines.index("recipes") > lines.index("spec")
    assert any(line.startswith("  recipe=sample_temperature") and "eagle3 generate -m" in line for line in lines)


def test_json_lists_own_files_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "small.yaml").write_text("# Pages of one\ntokens_per_block: 1\n")

    assert main(["list", "--json", "--config-dir", str(tmp_path)]) == 0

    entries = json.loads(capsys.readouterr().out)
    assert {"group": "kv", "name": "small", "about": "Pages of one"} in entries
    assert {entry["group"] for entry in entries} >= {"conf", "target", "draft", "spec", "kv", "recipe"}
