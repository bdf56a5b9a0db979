"""Rows for `rule_tables`: the rules of training."""

from typing import Any

from eagle3.config.rules import Rule
from eagle3.config.rules_train import made_data, trained_captures, trained_vocabulary, training
from eagle3.config.schema import DType

_RANGES = [
    ("steps", 0, "at least 1"),
    ("keep", 0, "at least 1"),
    ("batch_size", 2**20 + 1, "at most 2^20"),
    ("seq_len", 2, "at least 3"),
    ("max_steps", 0, "null for all epochs"),
    ("step_decay", 0.0, "at most 1"),
    ("lr", float("nan"), "above 0"),
    ("warmup", 1.0, "a share"),
    ("weight_decay", -0.1, "at least 0"),
    ("clip", 0.0, "above 0"),
    ("seed", -1, "2^63"),
    ("dtype", DType.float16, "bfloat16"),
    ("features", "", "wants a folder"),
]
_DATA = [
    ("temperatures", [], "0 at most once"),
    ("temperatures", [0.0, 0.0], "0 at most once"),
    ("temperatures", [1e-9], "from 1e-05 on"),
    ("temperatures", [float("inf")], "numbers"),
    ("max_new_tokens", 0, "2^30"),
    ("eval_share", 0.0, "above 0"),
    ("eval_share", 0.51, "at most 0.5"),
    ("seed", 2**63, "2^63"),
    ("batch", 0, "null for runtime.max_batch_size"),
    ("sets", ["stdlib:3", "self", "self:0"], "self:COUNT"),
]
FAILING: list[tuple[Rule, str, dict[str, Any], str, str]] = [
    *((training, "smollm2", {f"train__{key}": value}, f"train.{key}", said) for key, value, said in _RANGES),
    *((made_data, "smollm2", {f"data__{key}": value}, f"data.{key}", said) for key, value, said in _DATA),
    *(
        (training, "smollm2", {f"train__{key}": "a", "train__features": "./a"}, "train.features", "another folder")
        for key in ("data", "out")
    ),
    (trained_vocabulary, "smollm2", {"train__draft_vocab_size": 49153}, "train.draft_vocab_size", "[1, 49152]"),
    *(
        (trained_captures, "smollm2", {"train__layers_to_capture": ids}, "train.layers_to_capture", said)
        for ids, said in (([], "at least one"), ([1, 1], "distinct"), ([30], "[0, 29]"))
    ),
]
PASSING: list[tuple[Rule, str, dict[str, Any]]] = [
    (training, "smollm2", {"train__data": "a", "train__out": "b", "train__features": "c"}),
    (training, "smollm2", {"train__max_steps": 1, "train__step_decay": 1.0, "train__warmup": 0.0}),
    (made_data, "smollm2", {"data__temperatures": [1.0, 1.0, 0.0], "data__eval_share": 0.5, "data__batch": 1}),
    (made_data, "smollm2", {"data__sets": ["self:1", "self:999999999", "stdlib"], "data__seed": 2**63 - 1}),
    *((trained_vocabulary, "smollm2", {"train__draft_vocab_size": n}) for n in (None, 1, 49152)),
    *((trained_captures, "smollm2", {"train__layers_to_capture": ids}) for ids in (None, [-1], [0, 29])),
]
