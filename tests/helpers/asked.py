"""What the matrix's requests ask of their logits, some of them; ends that their answers meet."""

from typing import Any

from helpers.matrix import SAMPLINGS

ENDS = frozenset({3, 7})
ASKED: list[dict[str, Any]] = [
    {"repetition_penalty": 1.5},
    {},
    {"presence_penalty": 1.0, "min_new_tokens": 5},
    {"frequency_penalty": -0.5, "repetition_penalty": 0.75},
    {"min_new_tokens": 9, "stop_token_ids": [1, 4]},
    {"frequency_penalty": 2.0, "presence_penalty": -0.25, "min_new_tokens": 1},
    {"repetition_penalty": 4.0, "ignore_eos": True},
]
WANTED: list[dict[str, Any]] = [s | {"max_new_tokens": 16} | a for s, a in zip(SAMPLINGS, ASKED, strict=True)]
