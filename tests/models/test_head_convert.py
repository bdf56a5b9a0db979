"""A head between dialects: the same bits and facts come back, and what a dialect cannot say is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle3.config.schema import DraftConfig, LayerIds
from eagle3.errors import ConfigError, RunError, UnsupportedError, WeightError
from eagle3.models.head_convert import Target, convert_head
from eagle3.models.head_dialects import BEYOND, DIALECTS
from helpers.heads import HT, L, V, Vd, head_config, head_tensors, load, write_head

IDS, NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config"
TARGET = Target(HT, V, L)
HEADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "listed": ({}, {NESTED: {IDS: [1, 4, 6]}}),
    "own embedding": ({"own_embedding": True}, {}),
    "another width": ({"hidden": 12, "own_embedding": True}, {"hidden_size": 12, "target_hidden_size": HT}),
    "a width told": ({}, {"target_hidden_size": HT}),
    "full vocabulary": ({"draft_vocab": V}, {"draft_vocab_size": V}),
    "scaled": (
        {},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "torch_dtype": "bfloat16"},
    ),
    "bfloat16": ({"dtype": torch.bfloat16}, {}),
    "norm_before_fc": ({"norm_before_fc": True}, {"norm_before_fc": True}),
    "fc_norm": ({"fc_norm": True}, {"fc_norm": True}),
    "norm_output": ({}, {"norm_output": True}),
    "norm_before_residual": ({}, {"norm_before_residual": True}),
    "use_qk_norm": ({"qk_norm": True}, {}),
    "eh_proj_before_attn": ({"eh_proj": True, "eh_bias": True}, {NESTED: {"eh_proj_before_attn": True}}),
    "next_layer_regular=false": ({"layers": 2, "all_pair": True}, {"num_hidden_layers": 2}),
    "use_aux_hidden_state=false": ({"fc": False}, {NESTED: {"use_aux_hidden_state": False}}),
    "several layers": ({"layers": 3}, {"num_hidden_layers": 3}),
    "a bias of fc": ({"fc_bias": True}, {"bias": True}),
}


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


@pytest.mark.parametrize("to", DIALECTS)
@pytest.mark.parametrize("name", HEADS)
def test_there_and_back(tmp_path: Path, name: str, to: str) -> None:
    kind, config = HEADS[name]
    start = write_head(tmp_path / "a", head_tensors(**kind), head_config(**config))
    head, report = load(start)
    lacking = DIALECTS[to].lacks(head.facts)
    if lacking:
        assert lacking in ([name], [name, "several layers"])
        with pytest.raises(UnsupportedError, match=rf"{to} has no words for .*{name}.* ha[sv]e?"):
            convert_head(start, to, tmp_path / "b", DraftConfig())
        assert not (tmp_path / "b").exists()
        return
    convert_head(start, to, tmp_path / "b", DraftConfig(), TARGET)
    there, again = load(tmp_path / "b")
    assert there.facts == head.facts
    assert again.capture.outputs == report.capture.outputs
    assert not [line for line in again.warnings if "ships an embedding" not in line]
    ours, theirs = head.state_dict(), there.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())

    for home in (home for home, dialect in DIALECTS.items() if not dialect.lacks(head.facts)):
        straight, round_ = tmp_path / f"{home}1", tmp_path / f"{home}2"
        convert_head(start, home, straight, DraftConfig(), TARGET)
        convert_head(tmp_path / "b", home, round_, DraftConfig(), TARGET)
        one, two = tensors_of(straight), tensors_of(round_)
        assert one.keys() == two.keys()
        for key, value in one.items():
            assert value.dtype == two[key].dtype
            assert torch.equal(value, two[key]), key
        assert config_of(straight) == config_of(round_)


def test_all_that_a_dialect_may_lack_is_converted_or_refused() -> None:
    assert BEYOND.keys() - {"draft.normed_twice"} <= HEADS.keys()
    said = [dialect.says for dialect in DIALECTS.values()]
    assert frozenset().union(*said) == BEYOND.keys() - {"draft.normed_twice"}
    assert frozenset.intersection(*said) == {"norm_output"}


def test_the_files_of_the_official_code_come_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = head_tensors(dtype=torch.float16)
    folder = write_head(tmp_path / "a", tensors, kind="bin")
    for i, to in enumerate(("modelopt", "speculators", "midlayer")):
        convert_head(folder, to, tmp_path / f"{i}", DraftConfig())
        folder = tmp_path / f"{i}"
    back = tensors_of(folder)
    assert back.keys() == tensors.keys()
    assert all(value.dtype == back[key].dtype and torch.equal(value, back[key]) for key, value in tensors.items())
    assert config_of(folder)["torch_dtype"] == "float16"


@pytest.mark.parametrize("width", [{"target_hidden_size": HT}, {}])
def test_config_json_comes_back_whole(tmp_path: Path, width: dict[str, int]) -> None:
    start = write_head(tmp_path / "a", config=head_config(torch_dtype="float32", **width))
    convert_head(start, "midlayer", tmp_path / "official", DraftConfig())
    official = config_of(tmp_path / "official")
    assert official.get("target_hidden_size") == width.get("target_hidden_size")
    for to in ("modelopt", "speculators"):
        convert_head(tmp_path / "official", to, tmp_path / to, DraftConfig())
        assert config_of(tmp_path / to).get("target_hidden_size") == width.get("target_hidden_size")
        convert_head(tmp_path / to, "midlayer", tmp_path / f"from-{to}", DraftConfig())
        assert config_of(tmp_path / f"from-{to}") == official


@pytest.mark.parametrize("key", ["hidden_size", "target_hidden_size", "vocab_size"])
def test_a_size_in_words_is_told_by_its_key(tmp_path: Path, key: str) -> None:
    start = write_head(tmp_path / "a", config=head_config(**{key: "wide"}))
    with pytest.raises(WeightError, match=f"json: {key} is 'wide', must be a positive integer"):
        convert_head(start, "midlayer", tmp_path / "b", DraftConfig())


def test_what_each_dialect_looks_like(tmp_path: Path) -> None:
    start = write_head(tmp_path / "a", config=head_config(eos_token_id=7, **{NESTED: {IDS: [1, 4, 6]}}))
    for to in DIALECTS:
        done = convert_head(start, to, tmp_path / to, DraftConfig(), TARGET)
        assert done.tensors == tuple(sorted(tensors_of(tmp_path / to)))
        assert config_of(tmp_path / to)["eos_token_id"] == 7
    official, nvidia, spoken = (config_of(tmp_path / to) for to in ("midlayer", "modelopt", "speculators"))
    assert official[NESTED][IDS] == nvidia[NESTED][IDS] == [1, 4, 6]
    assert spoken[IDS] == [2, 5, 7]
    assert official["architectures"] == nvidia["architectures"] == ["LlamaForCausalLMEagle3"]
    assert "target_hidden_size" not in official
    assert spoken["speculators_model_type"] == spoken["speculators_config"]["algorithm"] == "eagle3"
    assert spoken["transformer_layer_config"]["hidden_size"] == HT
    assert spoken["norm_before_residual"] is False
    assert nvidia[NESTED]["use_last_layernorm"] is True
    names = {to: tensors_of(tmp_path / to).keys() for to in DIALECTS}
    assert "midlayer.self_attn.q_proj.weight" in names["midlayer"]
    assert "layers.0.self_attn.q_proj.weight" in names["modelopt"] & names["speculators"]
    assert [to for to in DIALECTS if "t2d" in names[to]] == ["midlayer", "speculators"]


def test_later_layers_are_named_as_their_readers_do(tmp_path: Path) -> None:
    start = write_head(tmp_path / "a", head_tensors(layers=2), head_config(num_hidden_layers=2))
    convert_head(start, "modelopt", tmp_path / "b", DraftConfig())
    names = tensors_of(tmp_path / "b").keys()
    assert {"layers.0.hidden_norm.weight", "layers.1.input_layernorm.weight"} <= names
    assert "layers.1.hidden_norm.weight" not in names


def test_a_list_that_does_not_tell_what_it_means(tmp_path: Path) -> None:
    start = write_head(tmp_path / "a", config=head_config(**{NESTED: {IDS: [3, 5, 7]}}))
    done = convert_head(start, "modelopt", tmp_path / "same", DraftConfig())
    assert done.layers == (3, 5, 7)
    assert "layer_ids_convention" not in config_of(tmp_path / "same")[NESTED]
    with pytest.raises(ConfigError, match=r"draft\.layer_ids_convention"):
        convert_head(start, "speculators", tmp_path / "b", DraftConfig())
    told = DraftConfig(layer_ids_convention=LayerIds.input)
    assert convert_head(start, "speculators", tmp_path / "b", told).layers == (3, 5, 7)
    assert convert_head(start, "midlayer", tmp_path / "c", told).layers == (2, 4, 6)
    assert load(tmp_path / "b")[1].capture.outputs == load(tmp_path / "c")[1].capture.outputs == (2, 4, 6)

    usual = write_head(tmp_path / "d", config=head_config(**{NESTED: {IDS: [2, 4, 5]}}))
    assert convert_head(usual, "speculators", tmp_path / "e", DraftConfig(), TARGET).layers == (2, 4, 5)
    with pytest.raises(ConfigError, match=r"draft\.layer_ids_convention"):
        convert_head(usual, "speculators", tmp_path / "f", DraftConfig(), Target(HT, V + 1, L))
    top = write_head(tmp_path / "g", config=head_config(**{IDS: [3, 5, 7]}))
    with pytest.raises(ConfigError, match=r"draft\.layer_ids_convention"):
        convert_head(top, "modelopt", tmp_path / "h", DraftConfig())


def test_the_final_norm_in_a_list(tmp_path: Path) -> None:
    config = head_config(**{NESTED: {IDS: [2, 5, -1], "layer_ids_convention": "output"}})
    start = write_head(tmp_path / "a", config=config)
    assert convert_head(start, "modelopt", tmp_path / "b", DraftConfig()).layers == (2, 5, -1)
    with pytest.raises(UnsupportedError, match=r"speculators has no words for the final norm \(-1\)"):
        convert_head(start, "speculators", tmp_path / "c", DraftConfig())


def test_what_a_user_says_of_a_head_is_obeyed(tmp_path: Path) -> None:
    start = write_head(tmp_path / "a", config=head_config(norm_output=True))
    convert_head(start, "midlayer", tmp_path / "b", DraftConfig(norm_output_feeds_back=False))
    assert "norm_output" not in config_of(tmp_path / "b")
    assert not load(tmp_path / "b")[0].facts.norm_output
    with pytest.raises(UnsupportedError, match=r"no words for draft\.normed_twice.*no dialect has"):
        convert_head(write_head(tmp_path / "c"), "modelopt", tmp_path / "d", DraftConfig(normed_twice=True))


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    more = {"verifier_norm.weight": torch.ones(HT), "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    start = write_head(tmp_path / "a", head_tensors() | more)
    done = convert_head(start, "modelopt", tmp_path / "b", DraftConfig())
    assert set(done.left_out) == {"verifier_norm.weight", "midlayer.self_attn.rotary_emb.inv_freq", "t2d"}


def test_a_map_of_nothing_but_zeros_is_kept(tmp_path: Path) -> None:
    maps = {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool)}
    start = write_head(tmp_path / "a", head_tensors(draft_vocab=V) | maps, head_config(draft_vocab_size=V))
    convert_head(start, "modelopt", tmp_path / "b", DraftConfig())
    convert_head(tmp_path / "b", "midlayer", tmp_path / "c", DraftConfig())
    assert torch.equal(tensors_of(tmp_path / "c")["t2d"], maps["t2d"])
    assert torch.equal(tensors_of(tmp_path / "c")["d2t"], maps["d2t"])


def test_a_broken_head_is_not_converted(tmp_path: Path) -> None:
    tensors = {name: value for name, value in head_tensors().items() if name != "norm.weight"}
    del tensors["midlayer.mlp.up_proj.weight"]
    with pytest.raises(WeightError, match=r"(?s)missing: midlayer\.mlp\.up_proj\.weight.*missing: norm\.weight"):
        convert_head(write_head(tmp_path / "a", tensors), "modelopt", tmp_path / "b", DraftConfig())
    more = head_tensors() | {"midlayer.input_norm.weight": torch.ones(3 * HT)}
    with pytest.raises(WeightError, match=r"left over: midlayer\.input_norm"):
        convert_head(write_head(tmp_path / "c", more), "modelopt", tmp_path / "b", DraftConfig())
    config = head_config(vocab_size=None)
    with pytest.raises(WeightError, match="vocab_size is None"):
        convert_head(write_head(tmp_path / "d", config=config), "modelopt", tmp_path / "b", DraftConfig())
    medusa = write_head(tmp_path / "e", {"medusa_head.0.0.linear.weight": torch.ones(2, 2)}, {"medusa_num_heads": 1})
    with pytest.raises(WeightError, match="is no EAGLE-3 head, but seems to hold Medusa heads"):
        convert_head(medusa, "modelopt", tmp_path / "b", DraftConfig())
    assert not (tmp_path / "b").exists()


def test_a_folder_in_use_is_not_touched(tmp_path: Path) -> None:
    start = write_head(tmp_path / "a")
    before = {file.name: file.read_bytes() for file in start.iterdir()}
    with pytest.raises(ConfigError, match="--out: is in use"):
        convert_head(start, "modelopt", start, DraftConfig())
    assert {file.name: file.read_bytes() for file in start.iterdir()} == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="--out: is in use"):
        convert_head(start, "modelopt", tmp_path / "file", DraftConfig())
    with pytest.raises(RunError, match="cannot be written"):
        convert_head(start, "modelopt", Path("/proc/no/such"), DraftConfig())
    (tmp_path / "empty").mkdir()
    assert len(convert_head(start, "modelopt", tmp_path / "empty", DraftConfig()).tensors) > 10
    assert load(tmp_path / "empty")[0].draft_vocab == Vd
