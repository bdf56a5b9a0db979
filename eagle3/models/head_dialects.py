"""The dialects that a head can be written in: names, where config.json has what, and what each can say."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3.config.schema import LayerIds
from eagle3.models.head_config import CONVENTION, LAYER, LAYER_IDS, NESTED, NO_AUX
from eagle3.models.head_facts import HeadFacts

# What goes beyond a plain head of one layer, by the name under which it is refused.
BEYOND: Mapping[str, Callable[[HeadFacts], bool]] = {
    "norm_before_fc": lambda facts: facts.norm_before_fc,
    "fc_norm": lambda facts: facts.fc_norm,
    "norm_output": lambda facts: facts.norm_output,
    "norm_before_residual": lambda facts: facts.norm_before_residual,
    "use_qk_norm": lambda facts: facts.qk_norm,
    "eh_proj_before_attn": lambda facts: facts.eh_proj,
    "next_layer_regular=false": lambda facts: facts.all_layers_pair,
    "use_aux_hidden_state=false": lambda facts: not facts.fc,
    "several layers": lambda facts: facts.layers > 1,
    "a bias of fc": lambda facts: facts.fc_bias,
    "draft.normed_twice": lambda facts: facts.normed_twice,  # no config.json has a field for it
}


@dataclass(frozen=True)
class Dialect:
    """How one family of trainers and engines writes a head."""

    note: str
    layer: str  # how layer i is called
    norm: str  # how the one norm of an ordinary layer behind the first is called
    ids: LayerIds  # what a list of captured layers means
    maps_back: bool  # t2d is written beside d2t
    says: frozenset[str]  # of BEYOND
    config: Callable[[HeadFacts, dict[str, Any], list[int] | None, LayerIds | None], dict[str, Any]]

    def lacks(self, facts: HeadFacts) -> list[str]:
        """What a head has and this dialect has no words for."""
        return [name for name, has in BEYOND.items() if has(facts) and name not in self.says]

    def stored(self, name: str, facts: HeadFacts) -> str:
        """A public name -> the name in this dialect's files."""
        if not name.startswith("layers."):
            return name
        _, i, rest = name.split(".", 2)
        if i != "0" and not facts.all_layers_pair:
            rest = rest.replace("hidden_norm.", f"{self.norm}.")
        return f"{self.layer.format(i=i)}.{rest}"


def sizes(facts: HeadFacts) -> dict[str, Any]:
    """What all dialects say in the same words of a layer."""
    return {
        "model_type": "llama",
        "hidden_size": facts.hidden,
        "intermediate_size": facts.intermediate,
        "num_hidden_layers": facts.layers,
        "num_attention_heads": facts.heads,
        "num_key_value_heads": facts.kv_heads,
        "head_dim": facts.head_dim,
        "vocab_size": facts.vocab,
        "max_position_embeddings": facts.rope.max_position_embeddings,
        "rms_norm_eps": facts.eps,
        "rope_theta": facts.rope.theta,
        "rope_scaling": facts.rope.scaling,
        "hidden_act": "silu",
        "attention_bias": facts.qkv_bias,
        "mlp_bias": facts.mlp_bias,
    }


def _widths(facts: HeadFacts) -> dict[str, Any]:
    """A target's width is named where it is another: readers take the field for a sign of that."""
    other = {"target_hidden_size": facts.target_hidden} if facts.target_hidden != facts.hidden else {}
    return {"draft_vocab_size": facts.draft_vocab, "tie_word_embeddings": False, **other}


def _nested(facts: HeadFacts, ids: Sequence[int] | None, told: LayerIds | None) -> dict[str, Any]:
    listed = {} if ids is None else {LAYER_IDS: list(ids)}
    meaning = {} if ids is None or told is None else {CONVENTION: told.value}
    return {NO_AUX: facts.fc, **listed, **meaning}


def _midlayer(
    facts: HeadFacts, carried: dict[str, Any], ids: list[int] | None, told: LayerIds | None
) -> dict[str, Any]:
    config = {"architectures": ["LlamaForCausalLMEagle3"], **carried, **sizes(facts), **_widths(facts)}
    flags = {"bias": facts.fc_bias, "fc_norm": facts.fc_norm, "norm_output": facts.norm_output}
    return {**config, **{key: True for key, on in flags.items() if on}, NESTED: _nested(facts, ids, told)}


def _modelopt(
    facts: HeadFacts, carried: dict[str, Any], ids: list[int] | None, told: LayerIds | None
) -> dict[str, Any]:
    nested = {
        **_nested(facts, ids, told),
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": not facts.all_layers_pair,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 0,
    }
    flags = {
        "norm_before_fc": facts.norm_before_fc,
        "return_hidden_post_norm": facts.norm_output,
        "eh_proj_before_attn": facts.eh_proj,
        "eh_proj_bias": facts.eh_proj_bias,
    }
    nested |= {key: True for key, on in flags.items() if on}
    config = {"architectures": ["LlamaForCausalLMEagle3"], **carried, **sizes(facts), **_widths(facts)}
    return {**config, "bias": facts.fc_bias, NESTED: nested}


def _speculators(
    facts: HeadFacts, carried: dict[str, Any], ids: list[int] | None, _: LayerIds | None
) -> dict[str, Any]:
    kind = "qwen3" if facts.qk_norm else "llama"
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3}  # where a reader starts from
    return {
        "architectures": ["Eagle3Speculator"],
        **carried,
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"architectures": [], "name_or_path": None},
        },
        **_widths(facts),
        "norm_before_residual": facts.norm_before_residual,
        "norm_before_fc": facts.norm_before_fc,
        "fc_norm": facts.fc_norm,
        "norm_output": facts.norm_output,
        LAYER_IDS: ids,
        LAYER: {**sizes(facts), "model_type": kind},
    }


DIALECTS: Mapping[str, Dialect] = {
    "midlayer": Dialect(
        "the official code's, SpecForge's, AngelSlim's; read by SGLang, vLLM and TensorRT-LLM",
        layer="midlayer",
        norm="hidden_norm",
        ids=LayerIds.output,
        maps_back=True,
        says=frozenset({"fc_norm", "norm_output", "use_aux_hidden_state=false", "a bias of fc"}),
        config=_midlayer,
    ),
    "modelopt": Dialect(
        "NVIDIA's; read by TensorRT-LLM, vLLM and SGLang",
        layer="layers.{i}",
        norm="input_layernorm",
        ids=LayerIds.output,
        maps_back=False,
        says=frozenset(
            {
                "norm_before_fc",
                "norm_output",
                "eh_proj_before_attn",
                "next_layer_regular=false",
                "use_aux_hidden_state=false",
                "several layers",
                "a bias of fc",
            }
        ),
        config=_modelopt,
    ),
    "speculators": Dialect(
        "Red Hat's; read by vLLM",
        layer="layers.{i}",
        norm="input_layernorm",
        ids=LayerIds.input,
        maps_back=True,
        says=frozenset(
            {"norm_before_fc", "fc_norm", "norm_output", "norm_before_residual", "use_qk_norm", "several layers"}
        ),
        config=_speculators,
    ),
}
