"""Rows for `rule_tables`: the facts that some families of targets have and others have not."""

from typing import Any

from eagle3.config.rules import Rule
from eagle3.config.rules_model import optional_facts

HEAD = "draft__architecture__"
BODY = "target__architecture__"
FULL, SLIDES = "full_attention", "sliding_attention"
FAILING: list[tuple[Rule, str, dict[str, Any], str, str]] = [
    # rule, engine, changes, key, message
    (optional_facts, "smollm2", {BODY + "sliding_window": 8}, BODY + "sliding_window", "LlamaForCausalLM has none"),
    (optional_facts, "qwen2_7b", {BODY + "attention_bias": True}, BODY + "attention_bias", "Qwen2ForCausalLM has"),
    (optional_facts, "qwen3_8b", {BODY + "mlp_bias": True}, BODY + "mlp_bias", "Qwen3ForCausalLM has none"),
    (optional_facts, "mistral7b", {BODY + "layer_types": [FULL] * 32}, BODY + "layer_types", "MistralForCausalLM has"),
    (optional_facts, "qwen3_8b", {HEAD + "sliding_window": 8}, HEAD + "sliding_window", "a head has none"),
    (optional_facts, "mistral7b", {BODY + "sliding_window": 0}, BODY + "sliding_window", "at least 1"),
    (optional_facts, "qwen2_7b", {BODY + "layer_types": [FULL]}, BODY + "layer_types", "each of 28 layers"),
    (optional_facts, "qwen2_7b", {BODY + "layer_types": ["linear"] * 28}, BODY + "layer_types", "not linear"),
    (optional_facts, "qwen2_7b", {BODY + "layer_types": [SLIDES] * 28}, BODY + "sliding_window", "is needed by"),
]
PASSING: list[tuple[Rule, str, dict[str, Any]]] = [
    *((optional_facts, name, {}) for name in ("smollm2", "qwen2_7b", "qwen3_8b", "mistral7b")),
    (optional_facts, "smollm2", {BODY + "attention_bias": True, BODY + "mlp_bias": True}),
    (optional_facts, "mistral7b", {BODY + "sliding_window": None}),
    (optional_facts, "qwen3_8b", {BODY + "sliding_window": 8, BODY + "layer_types": [FULL, SLIDES] * 18}),
    (optional_facts, "smollm2", {BODY + "architecture": "FooForCausalLM", BODY + "sliding_window": 8}),
]
