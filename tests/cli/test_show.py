"""`eagle3 show`."""

import json

import pytest
import yaml  # type: ignore[import-untyped]

from eagle3.cli import main


def test_what_was_left_out_is_filled_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "conf=llama8b", "kv.tokens_per_block=16"]) == 0
    as_yaml = yaml.safe_load(capsys.readouterr().out)
    assert main(["show", "conf=llama8b", "kv.tokens_per_block=16", "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)

    assert as_yaml == as_json
    assert as_yaml["kv"]["tokens_per_block"] == 16
    assert as_yaml["spec"]["decoding_type"] == "eagle3"
    assert as_yaml["runtime"]["prompt_chunk"] == 2048


def test_cfg_shows_what_hydra_composes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--cfg", "job", "-p", "runtime", "runtime.device=gpu"]) == 0

    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["device"] == "gpu"  # shown, not judged
    assert shown["prompt_chunk"] is None


def test_a_broken_config_is_told_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "kv.tokens_per_block=33"]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert "1 problem in the configuration" in err
    assert "seen 33, from override kv.tokens_per_block=33" in err


def test_a_fault_under_cfg_is_one_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--cfg", "job", "spec=forest"]) == 2

    err = capsys.readouterr().err
    assert "forest" in err
    assert "Traceback" not in err
