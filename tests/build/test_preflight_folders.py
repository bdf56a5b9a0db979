"""What is wrong with one model hides nothing of the other: a target that is lost or broken, folders of neither."""

from pathlib import Path
from typing import Any

import pytest

from eagle3.build.engine import build_engine
from eagle3.build.preflight import Preflight
from eagle3.errors import ConfigError
from helpers.checkpoints import write_tokenizer
from helpers.damage import say, tensors
from helpers.looked import composed, look


def told(found: Preflight, key: str) -> str:
    """All that is wrong with a key."""
    return "\n".join(problem.message for problem in found.problems if problem.key == key)


def spoilt(head: Path) -> None:
    tensors(lambda t: t.pop("midlayer.mlp.up_proj.weight"))(head)
    say(rms_norm_eps="small")(head)


def test_a_broken_target_hides_nothing_of_its_head(pair: Path) -> None:
    (pair / "target" / "config.json").write_text("{")
    spoilt(pair / "head")
    found = look(pair)
    assert "cannot be read" in told(found, "target.checkpoint")
    for words in ("rms_norm_eps is 'small'", "missing: midlayer.mlp.up_proj.weight"):
        assert words in told(found, "draft.checkpoint")
    assert "the target's facts are not known" in dict(found.report)["not judged"]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"vocab_size": None, "odd_norm": 1}, "odd_norm=1"),
        ({"vocab_size": "x"}, "vocab_size is 'x'"),
        ({"eagle_aux_hidden_state_layer_ids": ["x"]}, "must be a list of integers"),
        ({"eagle_aux_hidden_state_layer_ids": [3, 5, 99]}, ""),
        ({"hidden_size": 100}, ""),  # with fc of 3 · 64 it may read a target of another width
        ({"target_hidden_size": 96}, "which it needs: its hidden size is 64, the target's 96"),
    ],
)
def test_a_head_alone_is_held_against_what_it_says_of_its_target(pair: Path, said: dict[str, Any], text: str) -> None:
    say(**said)(pair / "head")
    found = look(pair, target__checkpoint=str(pair / "lost"))
    assert bool(found.problems) == bool(text)
    assert text in told(found, "draft.checkpoint")
    assert "captures" not in dict(found.report)


def test_a_run_tells_of_both_folders_at_once(pair: Path) -> None:
    lost = {f"{key}__checkpoint": str(pair / f"no-{key}") for key in ("target", "draft")}
    with pytest.raises(ConfigError) as raised:
        build_engine(composed(pair, **lost))
    assert [(p.key, p.value) for p in raised.value.problems] == [
        (key.replace("__", "."), name) for key, name in lost.items()
    ]
    assert "a hub id 'org/name'" in raised.value.problems[0].message
    spoilt(pair / "head")
    with pytest.raises(ConfigError, match=r"(?s)no such folder.*rms_norm_eps is 'small'"):
        build_engine(composed(pair, target__checkpoint=str(pair / "no-target")))


def test_a_targets_broken_tokenizer_is_no_fault_of_its_head(pair: Path) -> None:
    write_tokenizer(pair / "target")
    write_tokenizer(pair / "head")
    (pair / "target" / "tokenizer.json").write_text("{")
    assert [problem.key for problem in look(pair).problems] == ["target.checkpoint"]
