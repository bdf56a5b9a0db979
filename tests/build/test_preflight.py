"""What headers tell before a tensor is loaded: all problems of both models at once, each with its key."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3.build import engine as build_engine_module
from eagle3.build.engine import build_engine
from eagle3.build.folders import at_hand
from eagle3.build.preflight import Preflight, preflight
from eagle3.config.schema import ContextLimit
from eagle3.errors import ConfigError
from helpers.changed import changed
from helpers.checkpoints import write_tokenizer
from helpers.cycle_files import V
from helpers.looked import composed, look

FILE = "model.safetensors"
Q, K = (f"model.layers.0.self_attn.{x}_proj.weight" for x in "qk")
EMBED = "model.embed_tokens.weight"


def told(found: Preflight, key: str) -> str:
    """All that is wrong with a key."""
    return "\n".join(problem.message for problem in found.problems if problem.key == key)


def say(folder: Path, **fields: object) -> None:
    """Set fields of a config.json; None takes one out."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of a folder."""
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE, metadata={"format": "pt"})


def test_a_good_pair_tells_what_it_is(pair: Path) -> None:
    found = look(pair)
    assert found.problems == found.warnings == ()
    report = dict(found.report)
    assert report["captures"] == (
        "outputs of layers [1, 3, 4] = inputs of layers [2, 4, 5], the default; hidden_states [2, 4, 5] of transformers"
    )
    assert report["vocabulary"] == "identity map (full vocabulary)"
    assert "64, requests may grow to 100: extend" in report["positions"]
    assert found.config.target.architecture is not None
    assert found.config.draft.architecture is not None
    assert (found.config.target.architecture.num_hidden_layers, found.config.draft.architecture.vocab_size) == (8, V)


def test_the_last_layers_output_is_no_hidden_state_of_transformers(pair: Path) -> None:
    report = dict(look(pair, spec__layers_to_capture=[-1, 2, 7]).report)
    assert report["captures"].endswith("from spec.layers_to_capture; hidden_states [8, 3, none] of transformers")


def some_map(tensors: dict[str, Tensor]) -> None:
    ids = torch.arange(0, V, 4)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][ids].clone()
    tensors["d2t"] = ids - torch.arange(len(ids))


def test_two_maps_are_told_apart_by_their_hash(pair: Path) -> None:
    edit(pair / "head", some_map)
    say(pair / "head", draft_vocab_size=16)
    one = dict(look(pair).report)["vocabulary"]
    edit(pair / "head", lambda t: t["d2t"].add_(1))
    other = dict(look(pair).report)["vocabulary"]
    assert one.startswith("16 of 64 tokens (25.0 %), d2t ")
    assert len(one.split()[-1]) == 16
    assert one != other


def test_all_problems_of_both_models_at_once(pair: Path) -> None:
    say(pair / "target", vocab_size=60, intermediate_size=96)
    edit(pair / "target", lambda t: t.pop("model.norm.weight"))
    say(pair / "head", vocab_size=32, draft_vocab_size=32, rms_norm_eps="small", intermediate_size=7)
    edit(pair / "head", lambda t: t.update(stray=torch.ones(3)))
    found = look(pair)
    of_target, of_head = told(found, "target.checkpoint"), told(found, "draft.checkpoint")
    for line in (
        f"vocab_size is 60, but {EMBED} is [64, 64]",
        "intermediate_size is 96, but model.layers.0.mlp.gate_proj.weight is [128, 64]",
        "missing: model.norm.weight (for norm.weight)",
    ):
        assert line in of_target
    assert "shape:" not in of_target, "what follows from a number that is told is not told again"
    for line in (
        "vocab_size is 32, but the target has 60 tokens",
        "intermediate_size is 7, but",
        "rms_norm_eps is 'small'",
        "left over: stray [3]",
    ):
        assert line in of_head
    assert {problem.value for problem in found.problems} == {str(pair / "target"), str(pair / "head")}
    with pytest.raises(ConfigError) as raised:
        build_engine(composed(pair))
    assert raised.value.problems == found.problems


TARGET: dict[str, tuple[dict[str, object], Callable[[dict[str, Tensor]], object], str]] = {
    "heads": ({"num_attention_heads": 2}, len, rf"num_attention_heads is 2 · head_dim 16, but {Q} is \[64, 64\]"),
    "kv-heads": ({"num_key_value_heads": 1}, len, rf"num_key_value_heads is 1 · head_dim 16, but {K} is \[32, 64\]"),
    "kv-heads-that-do-not-divide": ({"num_key_value_heads": 3}, len, r"num_key_value_heads must divide .* not 3"),
    "odd-head-dim": ({"head_dim": 15}, len, r"head_dim`?=?.*15"),
    "hidden-size": ({"hidden_size": 32, "head_dim": 16}, len, r"hidden_size is 32, but .*embed_tokens"),
    "layers": ({"num_hidden_layers": 6}, len, r"num_hidden_layers is 6, but .* layers 0 to 7(.|\n)*left over"),
    "tokens": ({}, lambda t: t.update({EMBED: t[EMBED][:60].clone()}), rf"vocab_size is 64, but {EMBED} is \[60, 64\]"),
    "shape": ({}, lambda t: t.update({"model.norm.weight": torch.ones(5)}), r"shape: model.norm.weight is \[5\]"),
    "type": ({}, lambda t: t.update({Q: t[Q].to(torch.int8)}), rf"type: {Q} is I8"),
    "rope": ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, len, r"'llama3'"),
}


@pytest.mark.parametrize("name", TARGET)
def test_a_broken_target(name: str, pair: Path) -> None:
    fields, change, text = TARGET[name]
    say(pair / "target", **fields)
    if change is not len:
        edit(pair / "target", change)
    found = look(pair)
    assert re.search(text, told(found, "target.checkpoint"))


def test_an_unknown_rope_is_told_once(pair: Path, capfd: pytest.CaptureFixture[str]) -> None:
    say(pair / "target", rope_parameters={"rope_type": "spiral", "rope_theta": 10000.0})
    found = look(pair)
    assert "rope scaling 'spiral' is not supported; known: default" in told(found, "target.checkpoint")
    assert capfd.readouterr() == ("", ""), "transformers would print a line of its own"


def test_long_lists_are_cut_and_counted(pair: Path) -> None:
    edit(pair / "target", lambda t: [t.pop(name) for name in list(t) if ".mlp." in name])
    lines = told(look(pair), "target.checkpoint").splitlines()
    assert len(lines) == 1 + 8 + 1
    assert lines[-1].strip() == "missing: … and 16 more"


def test_facts_of_files_meet_the_rules(pair: Path) -> None:
    found = look(pair, spec__use_dynamic_tree=True, spec__dynamic_tree_max_topK=65, sampling__stop_token_ids=[64])
    assert "must be at most the head's vocabulary (64)" in told(found, "spec.dynamic_tree_max_topK")
    assert "must be in [0, 64)" in told(found, "sampling.stop_token_ids")
    found = look(pair, spec__layers_to_capture=[1, 3, 8])
    assert told(found, "spec.layers_to_capture").count("[8]") == 1, "not by a rule and by the head's reader"
    assert look(pair, runtime__max_seq_len=200).warnings[0].key == "runtime.max_seq_len"


def test_an_error_is_told_beforehand_where_a_head_is_too_short(pair: Path) -> None:
    found = look(pair, draft__context_limit=ContextLimit.error)
    assert told(found, "draft.context_limit") == (
        "the head was made for 64 positions, requests may grow to 100: lower runtime.max_seq_len to 64, or choose"
        " extend or stop_drafting"
    )
    assert not look(pair, draft__context_limit=ContextLimit.error, runtime__max_seq_len=64).problems
    with pytest.raises(ConfigError, match="made for 64 positions"):
        build_engine(composed(pair, draft__context_limit=ContextLimit.error))


def test_nothing_is_loaded_of_a_pair_that_cannot_be(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(build_engine_module, "load_target", never)
    say(pair / "head", vocab_size=32)
    with pytest.raises(ConfigError, match="another tokenizer") as raised:
        build_engine(composed(pair))
    assert [problem.key for problem in raised.value.problems] == ["draft.checkpoint"]
    assert raised.value.problems[0].value == str(pair / "head")


def test_a_bin_of_old_is_not_read(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = pair / "head"
    torch.save(load_file(head / FILE), head / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    torch.save(load_file(head / FILE), head / "zipped.bin")
    (head / FILE).unlink()
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it would be read whole"))
    found = look(pair)
    assert found.problems == ()
    assert dict(found.report)["not read"].startswith(f"{head / 'pytorch_model.bin'}: a .bin of before torch 1.6")


def test_a_zipped_bin_is_looked_into(pair: Path) -> None:
    head = pair / "head"
    torch.save({n: t for n, t in load_file(head / FILE).items() if n != "norm.weight"}, head / "pytorch_model.bin")
    (head / FILE).unlink()
    assert "missing: norm.weight" in told(look(pair), "draft.checkpoint")


def test_folders_that_are_no_checkpoints(pair: Path) -> None:
    (pair / "target" / "config.json").unlink()
    (pair / "head" / FILE).unlink()
    found = look(pair)
    assert "has no config.json" in told(found, "target.checkpoint")
    assert "has no weights" in told(found, "draft.checkpoint")


def test_a_head_is_held_against_inline_facts_where_the_target_is_absent(pair: Path) -> None:
    made = changed(("conf=llama8b",), draft__checkpoint=str(pair / "head"), draft__architecture=None)
    found = preflight(made, at_hand(made.config))
    assert dict(found.report)["not here"].startswith("meta-llama/Llama-3.1-8B-Instruct: no folder here")
    assert "vocab_size is 64, but the target has 128256 tokens" in told(found, "draft.checkpoint")


SAYS = {"verifier": {"name_or_path": "org/Their-Llama", "architectures": []}, "algorithm": "eagle3"}


def test_a_head_of_another_target_is_told_at_once(pair: Path) -> None:
    """A wrong width hides neither the tensor that says another, nor a wrong map, nor what is missing."""

    def change(tensors: dict[str, Tensor]) -> None:
        some_map(tensors)
        tensors["d2t"][-1] = V
        tensors["fc.weight"] = tensors["fc.weight"][:, :-1].clone()
        del tensors["norm.weight"]

    edit(pair / "head", change)
    say(pair / "head", draft_vocab_size=16, target_hidden_size=7)
    lines = told(look(pair), "draft.checkpoint").splitlines()
    for words in ("target_hidden_size is 7", "fc.weight", "d2t is not a map", "missing: norm.weight"):
        (line,) = [line for line in lines if words in line]
        assert not line.startswith("  shape"), line


@pytest.mark.parametrize("name", ["d2t", "lm_head.weight"])
def test_a_tensor_that_is_a_number(pair: Path, name: str) -> None:
    edit(pair / "head", lambda t: (some_map(t), t.update({name: torch.tensor(1)})))
    say(pair / "head", draft_vocab_size=16)
    assert name in told(look(pair), "draft.checkpoint")


def test_a_folder_that_is_not_here_is_warned_of(pair: Path) -> None:
    found = look(pair, target__checkpoint=str(pair / "lost"), draft__checkpoint="someone/somewhat")
    assert [(w.key, w.message) for w in found.warnings] == [("target.checkpoint", "no such folder on this machine")]
    assert "is a file" in told(look(pair, draft__checkpoint=str(pair / "head" / FILE)), "draft.checkpoint")
    assert "repo_id" in told(look(pair, draft__checkpoint="a--b/c"), "draft.checkpoint")


def test_whom_a_head_was_made_for(pair: Path) -> None:
    say(pair / "head", speculators_config=SAYS, norm_before_residual=False)
    assert dict(look(pair).report)["made for"] == "org/Their-Llama"


def tokenizers(pair: Path, change: Callable[[str], str]) -> Preflight:
    write_tokenizer(pair / "target")
    write_tokenizer(pair / "head")
    file = pair / "head" / "tokenizer.json"
    file.write_text(change(file.read_text()))
    return look(pair)


def test_a_head_with_the_targets_tokenizer(pair: Path) -> None:
    found = tokenizers(pair, lambda text: text + " ")  # no byte for byte copy
    assert found.problems == found.warnings == ()


def test_a_head_with_another_tokenizer(pair: Path) -> None:
    found = tokenizers(pair, lambda text: text.replace('"e": 7', '"e": 70').replace('"l": 14', '"l": 7'))
    assert re.search(r"'Hello, world! It is '… is \[\d+, 70, .* and \[\d+, 7, ", told(found, "draft.checkpoint"))


def test_a_head_with_other_special_tokens_is_warned_of(pair: Path) -> None:
    write_tokenizer(pair / "target")
    write_tokenizer(pair / "head")
    file = pair / "head" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token": "<s>"}))
    (pair / "head" / "tokenizer.json").write_text((pair / "head" / "tokenizer.json").read_text() + " ")
    found = look(pair)
    assert found.problems == ()
    assert found.warnings[0].message.startswith("the tokenizer that it ships is not the target's: eos is (0,)")
