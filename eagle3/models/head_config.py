"""A head's config.json: fields that we know, others that would change the maths, layers that it reads."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.config.schema import LayerIds
from eagle3.config.shape import default_capture
from eagle3.errors import ConfigError, Problem, UnsupportedError, WeightError

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
CONVENTION = "layer_ids_convention"  # of our own heads: whether that list means outputs or inputs
_USER_LAYERS = "spec.layers_to_capture"

# Fields that change the maths -> the values for which ours is right. Absent and null are right too.
_BUILT: Mapping[str, tuple[object, ...]] = {
    "norm_before_fc": (False,),
    "fc_norm": (False,),
    "norm_output": (False,),
    "return_hidden_post_norm": (False,),
    "norm_before_residual": (False,),
    "use_aux_hidden_state": (True,),
    "eh_proj_before_attn": (False,),
    "eh_proj_bias": (False,),
    "next_layer_regular": (True,),
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
    "use_qk_norm": (False,),
    "parallel_draft_step": (0, 1),
    "parallel_drafting": (False,),
    "kv_lora_rank": (0,),
    "q_lora_rank": (0,),
    "hidden_act": ("silu",),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1,),
    "quantization_config": (),
    "speculators_config": (),
    "speculators_model_type": (),
    "transformer_layer_config": (),
}
# Fields that are read here or in `models.heads`.
_READ = frozenset(
    {
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "draft_vocab_size",
        "target_hidden_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "qkv_bias",
        "bias",
        "eagle_config",
        LAYER_IDS,
        CONVENTION,
    }
)
# Fields without a say in inference, or told by the tensors.
_HARMLESS = frozenset(
    {
        "architectures",
        "model_type",
        "target_model_type",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "_name_or_path",
        "name_or_path",
        "auto_map",
        "use_cache",
        "initializer_range",
        "attention_dropout",
        "hidden_dropout",
        "pretraining_tp",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "max_window_layers",
        "has_lm_head",
        "use_torch_compile",
        "parallel_draft_heads_num_layers",
        "_attn_implementation",
        "output_hidden_states",
        "output_attentions",
        "return_dict",
    }
)
_SUSPECT = re.compile(
    r"norm|rope|rotary|scal|multiplier|bias|residual|layer|attention|attn|window|softcap|quant|mla|lora|moe|expert"
    r"|parallel|mask|medusa|fc|proj|embed|act|head|tie"
)


def read_head_config(folder: Path) -> dict[str, Any]:
    """config.json of a head; WeightError where it cannot be read."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as fault:
        raise WeightError(f"{folder} has no config.json") from fault
    except (OSError, ValueError) as fault:
        raise WeightError(f"{file} cannot be read: {fault}") from fault
    if not isinstance(config, dict) or not isinstance(config.get("eagle_config") or {}, dict):
        raise WeightError(f"{file} must hold an object, and so must its eagle_config")
    return config


def check_fields(config: Mapping[str, Any], file: Path) -> list[str]:
    """Warnings on fields that are not used; UnsupportedError for all that would change the maths."""
    wrong, unused = [], []
    for key, value in (*config.items(), *(config.get("eagle_config") or {}).items()):
        if key in _READ or key in _HARMLESS or value is None:
            continue
        if key in _BUILT:
            if value not in _BUILT[key]:
                wrong.append(f"{key}={json.dumps(value)}")
        elif key == "sliding_window":  # older configs carry one that is switched off
            if config.get("use_sliding_window") is not False:
                wrong.append(f"{key}={value}")
        elif key == "layer_types":
            if not isinstance(value, list) or any(kind != "full_attention" for kind in value):
                wrong.append(f"{key}={value}")
        elif value in (False, {}, []):  # whatever it is, it is off
            continue
        elif _SUSPECT.search(key):
            wrong.append(f"{key}={json.dumps(value)} (unknown)")
        else:
            unused.append(key)
    if wrong:
        raise UnsupportedError(f"{file} asks for what is not supported: {', '.join(wrong)}")
    return [f"config.json has unknown fields that are not used: {', '.join(unused)}"] if unused else []


@dataclass(frozen=True)
class CaptureChoice:
    """Which target layers a head reads, and who said so."""

    outputs: tuple[int, ...]  # ascending; i is layer i's output, -1 the output of the final norm
    source: str  # "user" | "head" | "default"
    convention: LayerIds  # how a head's own list was read

    def __str__(self) -> str:
        inputs = ", ".join("final norm" if i < 0 else str(i + 1) for i in self.outputs)
        origin = {
            "user": f"from {_USER_LAYERS}",
            "head": f"from the head's config, read as {self.convention.value}s",
            "default": "the default",
        }[self.source]
        return f"outputs of layers {list(self.outputs)} = inputs of layers [{inputs}], {origin}"


def capture_layers(
    user: Sequence[int] | None,
    config: Mapping[str, Any],
    convention: LayerIds,
    layers: int,
    count: int | None = None,
) -> CaptureChoice:
    """The layers of an L-layer target that a head of C = `count` captured layers reads (None: any number).

    The user's list, which means outputs, comes before the head's, that before the default.
    """
    if user is not None:
        if problem := _fault(user, layers, count):
            raise ConfigError([Problem(_USER_LAYERS, problem, list(user))])
        return CaptureChoice(tuple(sorted(user)), "user", LayerIds.output)
    nested = (config.get("eagle_config") or {}).get(LAYER_IDS)
    listed = config.get(LAYER_IDS)
    listed = nested if listed is None else listed
    if listed is None:
        outputs: tuple[int, ...] = default_capture(layers)
        if problem := _fault(outputs, layers, count):
            raise WeightError(
                f"the default layers {list(outputs)} do not fit: {problem}; name layers in {_USER_LAYERS}"
            )
        return CaptureChoice(outputs, "default", LayerIds.output)
    if not isinstance(listed, list) or not all(type(i) is int for i in listed):
        raise WeightError(f"{LAYER_IDS} must be a list of integers, not {listed!r}")
    meaning = _meaning(listed, config, layers) if convention is LayerIds.auto else convention
    shift = 1 if meaning is LayerIds.input else 0
    if shift and 0 in listed:
        raise UnsupportedError(
            f"{LAYER_IDS} {listed}, read as inputs, asks for the input of layer 0, which is not captured"
        )
    outputs = tuple(sorted(i - shift if i >= 0 else i for i in listed))
    if problem := _fault(outputs, layers, count):
        raise WeightError(f"{LAYER_IDS} {listed}, read as {meaning.value}s of layers: {problem}")
    return CaptureChoice(outputs, "head", meaning)


def _meaning(listed: Sequence[int], config: Mapping[str, Any], layers: int) -> LayerIds:
    """Whether a head's list means outputs or inputs, as far as it tells."""
    default = set(default_capture(layers))
    told = (config.get("eagle_config") or {}).get(CONVENTION) or config.get(CONVENTION)
    if told is not None:
        if told not in (LayerIds.output.value, LayerIds.input.value):
            raise WeightError(f"{CONVENTION} must be output or input, not {told!r}")
        return LayerIds(told)
    if "speculators_config" in config or "speculators_model_type" in config or layers in listed:
        return LayerIds.input
    if set(listed) in (default, {-1}) or min(listed, default=0) == 1:
        return LayerIds.output
    if set(listed) == {i + 1 for i in default}:
        return LayerIds.input
    text = f"the head lists {list(listed)} and does not tell whether outputs or inputs: choose output or input"
    raise ConfigError([Problem("draft.layer_ids_convention", text, LayerIds.auto.value)])


def _fault(outputs: Sequence[int], layers: int, count: int | None) -> str | None:
    if outside := [i for i in outputs if not -1 <= i < layers]:
        return f"{outside} is outside 0…{layers - 1} (or -1, the output of the final norm)"
    if len(set(outputs)) != len(outputs) or not outputs:
        return "they must be distinct, and at least one"
    if count is not None and len(outputs) != count:
        return f"{len(outputs)} layers given, the head's fc.weight reads {count}"
    return None
