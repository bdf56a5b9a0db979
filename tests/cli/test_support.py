"""`eagle3 support`: one table drives what is printed and what is refused."""

import json

import pytest

from eagle3.cli import main
from eagle3.config.support import BUILT, FEATURES
from eagle3.config.typed import KEYS


def test_the_table_is_the_one_that_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main(["support"]) == 0
    text = capsys.readouterr().out

    assert [row["feature"] for row in rows] == [feature.name for feature in FEATURES]
    assert {row["feature"] for row in rows if row["built"]} == BUILT
    assert "beam search" in text
    assert "not yet" in text


def test_the_table_is_as_wide_as_the_console(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["support"]) == 0
    text = capsys.readouterr().out
    assert {len(line) for line in text.splitlines()} == {80}
    assert "│ not yet │" in text


def test_the_keys_are_keys_of_the_schema() -> None:
    assert {key for feature in FEATURES for key in feature.asks} <= set(KEYS)
    assert all(feature.asks for feature in FEATURES if not feature.built)
