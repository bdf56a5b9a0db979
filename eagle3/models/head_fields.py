"""The fields of a head's config.json: where each dialect keeps them, those that are obeyed, those that are refused."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3.errors import UnsupportedError, WeightError
from eagle3.models.head_config import CONVENTION, LAYER, LAYER_IDS, NESTED

_SPOKEN = "speculators_config"

# Fields that are obeyed: true, false, or (absent or null) what the tensors or the dialect make of it.
SWITCHES = frozenset(
    {
        "norm_before_fc",
        "fc_norm",
        "norm_output",
        "return_hidden_post_norm",
        "norm_before_residual",
        "use_aux_hidden_state",
        "eh_proj_before_attn",
        "eh_proj_bias",
        "next_layer_regular",
        "use_qk_norm",
    }
)
# Fields that change the maths -> the values for which ours is right. Absent and null are right too.
_BUILT: Mapping[str, tuple[object, ...]] = {
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
    "parallel_draft_step": (0, 1),
    "parallel_drafting": (False,),
    "kv_lora_rank": (0,),
    "q_lora_rank": (0,),
    "hidden_act": ("silu",),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1,),
    "quantization_config": (),
    "speculators_model_type": ("eagle3",),
    "algorithm": ("eagle3",),
}
# Fields that are read elsewhere.
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
        "speculators_version",
        "embed_requires_grad",
        "enable_sp_ulysses",
    }
)
_FIRST_WINS = _HARMLESS | {"tie_word_embeddings", LAYER_IDS}  # may differ from place to place
_SUSPECT = re.compile(
    r"norm|rope|rotary|scal|multiplier|bias|residual|layer|attention|attn|window|softcap|quant|mla|lora|moe|expert"
    r"|parallel|mask|medusa|fc|proj|embed|act|head|tie"
)
# What a layer's config leaves out where it is the default of its class.
_OMITTED: Mapping[str, Mapping[str, object]] = {
    "llama": {"num_attention_heads": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    "qwen3": {
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
    },
}


def flat_fields(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """All fields of a config.json on one level, null ones left out.

    Raises UnsupportedError where two places contradict each other, WeightError for what is no config.
    """
    inner = {place: config.get(place) or {} for place in (NESTED, LAYER, _SPOKEN)}
    if wrong := [place for place, fields in inner.items() if not isinstance(fields, dict)]:
        raise WeightError(f"{file}: {wrong[0]} must be an object")
    inner[_SPOKEN] = {key: value for key, value in inner[_SPOKEN].items() if key == "algorithm"}  # the rest: how to run
    places = {"the top": {key: value for key, value in config.items() if key not in inner}, **inner}
    flat: dict[str, Any] = {}
    for place, fields in places.items():
        for key, value in fields.items():
            if value is None or (key in flat and key in _FIRST_WINS):
                continue
            if key in flat and flat[key] != value:
                raise UnsupportedError(
                    f"{file} contradicts itself: {key} is {json.dumps(flat[key])}, in {place} {json.dumps(value)}"
                )
            flat[key] = value
    if LAYER in config:
        return _layer_defaults(flat, str(inner[LAYER].get("model_type", "llama")), file)
    return flat


def _layer_defaults(flat: dict[str, Any], kind: str, file: Path) -> dict[str, Any]:
    if kind not in _OMITTED:
        raise UnsupportedError(f"{file}: a {LAYER} of {kind} is not supported; known: {', '.join(_OMITTED)}")
    return {**_OMITTED[kind], **flat, "model_type": kind}


def check_fields(flat: Mapping[str, Any], file: Path) -> list[str]:
    """Warnings on fields that are not used; UnsupportedError for all that would change the maths."""
    wrong, unused = [], []
    for key, value in flat.items():
        if key in _READ or key in _HARMLESS:
            continue
        if key in SWITCHES:
            if not isinstance(value, bool):
                raise WeightError(f"{file}: {key} is {value!r}, must be true or false")
        elif key in _BUILT:
            if value not in _BUILT[key]:
                wrong.append(f"{key}={json.dumps(value)}")
        elif key == "sliding_window":  # older configs carry one that is switched off
            if flat.get("use_sliding_window") is not False:
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
