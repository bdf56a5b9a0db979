"""A head's config.json: fields that change the maths, and which layers are captured."""

from pathlib import Path

import pytest

from eagle3.config.schema import LayerIds
from eagle3.errors import ConfigError, UnsupportedError, WeightError
from eagle3.models.head_config import capture_layers
from helpers.heads import head_config, load, write_head

OTHER_MATHS: dict[str, dict[str, object]] = {
    "use_last_layernorm": {"eagle_config": {"use_last_layernorm": False}},
    "parallel_draft_step": {"eagle_config": {"parallel_draft_step": 3}},
    "kv_lora_rank": {"kv_lora_rank": 512},
    "hidden_act": {"hidden_act": "gelu"},
    "sliding_window": {"sliding_window": 128},
    "use_sliding_window": {"use_sliding_window": True},
    "layer_types": {"layer_types": ["sliding_attention"]},
    "quantization_config": {"quantization_config": {"quant_method": "fp8"}},
    "speculators_model_type": {"speculators_model_type": "peagle", "norm_before_residual": False},
    "algorithm": {"speculators_config": {"algorithm": "dflash"}, "norm_before_residual": False},
    "transformer_layer_config of gpt": {"transformer_layer_config": {"model_type": "gpt"}},
    "norm_everything": {"norm_everything": True},
    "rope_flavour": {"eagle_config": {"rope_flavour": "mint"}},
    "logits_scaling": {"logits_scaling": 8.0},
}


@pytest.mark.parametrize(("field", "config"), OTHER_MATHS.items(), ids=OTHER_MATHS.keys())
def test_a_field_that_changes_the_maths_is_refused_by_name(
    tmp_path: Path, field: str, config: dict[str, object]
) -> None:
    write_head(tmp_path, config=head_config() | config)
    with pytest.raises(UnsupportedError, match=field):
        load(tmp_path)


def test_a_nested_field_does_not_hide_one_at_the_top(tmp_path: Path) -> None:
    write_head(tmp_path, config=head_config(norm_before_fc=True, eagle_config={"norm_before_fc": False}))
    with pytest.raises(UnsupportedError, match="norm_before_fc"):
        load(tmp_path)


def test_harmless_fields(tmp_path: Path) -> None:
    config = head_config(
        eagle_config={"use_aux_hidden_state": True, "next_layer_regular": True, "parallel_draft_step": 1},
        sliding_window=4096,
        use_sliding_window=False,
        layer_types=["full_attention"],
        norm_output=False,
        pruned_heads={},
        target_model_type="qwen3",
        ttt_length=7,
    )
    _, report = load(write_head(tmp_path, config=config))
    assert report.warnings == ("config.json has unknown fields that are not used: ttt_length",)


TOP, NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config"
AUTO, OUT, IN = LayerIds.auto, LayerIds.output, LayerIds.input


@pytest.mark.parametrize(
    ("user", "config", "convention", "layers", "want", "source"),
    [
        pytest.param(None, {}, AUTO, 32, (1, 15, 28), "default", id="default"),
        pytest.param(None, {TOP: None, NESTED: {TOP: None}}, AUTO, 32, (1, 15, 28), "default", id="null"),
        pytest.param([9, 3, 5], {TOP: [1, 2, 3]}, IN, 32, (3, 5, 9), "user", id="user-wins-and-means-outputs"),
        pytest.param([-1, 3, 5], {}, AUTO, 32, (-1, 3, 5), "user", id="final-norm"),
        pytest.param(None, {TOP: [1, 15, 28]}, AUTO, 32, (1, 15, 28), "head", id="the-output-default"),
        pytest.param(None, {NESTED: {TOP: [2, 16, 29]}}, AUTO, 32, (1, 15, 28), "head", id="the-input-default"),
        pytest.param(None, {NESTED: {TOP: [24, 30, 36]}}, AUTO, 36, (23, 29, 35), "head", id="L-means-inputs"),
        pytest.param(None, {NESTED: {TOP: [1, 17, 33]}}, AUTO, 36, (1, 17, 33), "head", id="1-means-outputs"),
        pytest.param(None, {TOP: [3, 9, 20], "speculators_config": {}}, AUTO, 32, (2, 8, 19), "head", id="speculators"),
        pytest.param(None, {TOP: [2, 30, 58]}, IN, 61, (1, 29, 57), "head", id="told-inputs"),
        pytest.param(None, {TOP: [2, 30, 58]}, OUT, 61, (2, 30, 58), "head", id="told-outputs"),
        pytest.param(None, {TOP: [5, 6, 7], NESTED: {TOP: [1, 2, 3]}}, OUT, 9, (5, 6, 7), "head", id="top-level-first"),
    ],
)
def test_capture_layers(
    user: list[int] | None,
    config: dict[str, object],
    convention: LayerIds,
    layers: int,
    want: tuple[int, ...],
    source: str,
) -> None:
    choice = capture_layers(user, config, convention, layers, 3)
    assert (choice.outputs, choice.source) == (want, source)


@pytest.mark.parametrize(
    ("user", "config", "convention", "error", "text"),
    [
        ([1, 2], {}, AUTO, ConfigError, "2 layers given, the head's fc.weight reads 3"),
        ([1, 2, 8], {}, AUTO, ConfigError, r"\[8\] is outside 0…7"),
        ([1, 2, -2], {}, AUTO, ConfigError, r"\[-2\] is outside"),
        ([1, 2, 2], {}, AUTO, ConfigError, "distinct"),
        (
            None,
            {TOP: [4, 5, 6]},
            AUTO,
            ConfigError,
            r"draft\.layer_ids_convention: .* choose output or input",
        ),
        (None, {TOP: [1, 3, 8]}, OUT, WeightError, r"read as outputs of layers: \[8\] is outside"),
        (None, {TOP: [1, 3, 9]}, IN, WeightError, r"read as inputs of layers: \[8\] is outside"),
        (None, {TOP: [0, 3, 4]}, IN, UnsupportedError, "input of layer 0"),
        (None, {TOP: [1, 3]}, OUT, WeightError, "2 layers given"),
        (None, {TOP: []}, AUTO, ConfigError, "does not tell"),
        (None, {TOP: 5}, AUTO, WeightError, "list of integers"),
    ],
)
def test_layers_that_cannot_be_captured(
    user: list[int] | None,
    config: dict[str, object],
    convention: LayerIds,
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        capture_layers(user, config, convention, 8, 3)
