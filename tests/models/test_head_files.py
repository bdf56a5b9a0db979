"""Broken heads: every kind is one clear error."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle3.errors import WeightError
from helpers.heads import HT, Vd, head_config, head_tensors, load, unsorted_map, write_head

Tensors = dict[str, Tensor]


def without(*names: str) -> Tensors:
    return {name: value for name, value in head_tensors().items() if name not in names}


def edit(name: str, change: Callable[[Tensor], Tensor]) -> Tensors:
    tensors = head_tensors()
    tensors[name] = change(tensors[name]).contiguous()
    return tensors


def swap(**values: Tensor) -> Tensors:
    return head_tensors() | values


D2T, T2D = unsorted_map()
IDS = D2T + torch.arange(Vd)

FIRST = "layers.0.self_attn.q_proj.weight"


def others(*names: str) -> Tensors:
    return {name: torch.ones(HT, HT) for name in names}


BROKEN: dict[str, tuple[Tensors, dict[str, object], str]] = {
    "missing-tensor": (without("norm.weight"), {}, r"missing: norm\.weight"),
    "missing-fc": (without("fc.weight"), {}, r"no EAGLE-3 head, it lacks fc\.weight"),
    "missing-query": (
        without("midlayer.self_attn.q_proj.weight"),
        {},
        r"no EAGLE-3 head, it lacks midlayer\.self_attn\.q_proj\.weight",
    ),
    "a-whole-model": (
        others(
            *(f"model.{n}" for n in ("embed_tokens.weight", "layers.0.input_layernorm.weight", FIRST, "norm.weight"))
        ),
        {},
        r"no EAGLE-3 head, but seems to hold a whole model.*target\.checkpoint",
    ),
    "eagle-1": (others("embed_tokens.weight", "fc.weight", FIRST), {}, r"no EAGLE-3 head, but seems to hold .*EAGLE-1"),
    "medusa": (others("0.0.linear.weight", "0.1.weight"), {}, r"no EAGLE-3 head, but seems to hold Medusa heads"),
    "missing-part-of-the-layer": (
        without("midlayer.self_attn.v_proj.weight", "midlayer.hidden_norm.weight"),
        {},
        r"missing: midlayer\.hidden_norm\.weight.*\n.*missing: midlayer\.self_attn\.v_proj\.weight",
    ),
    "extra-tensor": (
        swap(**{"input_norm.weight": torch.ones(3 * HT)}),
        {},
        r"left over: input_norm\.weight",
    ),
    "query-norm": (
        swap(**{"midlayer.self_attn.q_norm.weight": torch.ones(4)}),
        {},
        r"missing: midlayer\.self_attn\.k_norm\.weight",
    ),
    "twice": (
        swap(**{"model.fc.weight": torch.ones(HT, 3 * HT)}),
        {},
        r"fc\.weight and model\.fc\.weight are both|model\.fc\.weight and fc\.weight are both",
    ),
    "transposed-fc": (edit("fc.weight", lambda w: w.T), {}, r"hidden_size is 16.*fc\.weight \[48, 16\]"),
    "transposed-o": (
        edit("midlayer.mlp.down_proj.weight", lambda w: w.T),
        {},
        r"shape: midlayer\.mlp\.down_proj\.weight is \[20, 16\], the model wants \[16, 20\]",
    ),
    "ordinary-layer": (
        edit("midlayer.self_attn.q_proj.weight", lambda w: w[:, :HT]),
        {},
        r"self_attn\.q_proj\.weight.*must read 2 · 16.*ordinary",
    ),
    "shape-of-a-norm": (
        edit("norm.weight", lambda w: w[:-1]),
        {},
        r"shape: norm\.weight is \[15\]",
    ),
    "norm-of-integers": (edit("norm.weight", lambda w: w.long()), {}, r"type: norm\.weight is I64"),
    "fc-of-no-whole-number-of-layers": (
        edit("fc.weight", lambda w: w[:, :-1]),
        {},
        r"fc\.weight \[16, 47\] must read a multiple of the target's hidden size 16",
    ),
    "two-captured-layers": (
        edit("fc.weight", lambda w: w[:, : 2 * HT]),
        {},
        r"default layers \[1, 3, 4\] do not fit: 3 layers given.*reads 2.*spec\.layers_to_capture",
    ),
    "vocabulary-of-another-target": ({}, {"vocab_size": 32}, r"vocab_size is 32.*target has 40"),
    "draft-vocabulary": ({}, {"draft_vocab_size": 20}, r"draft_vocab_size is 20.*lm_head\.weight \[24, 16\]"),
    "draft-vocabulary-0": ({}, {"draft_vocab_size": 0}, r"draft_vocab_size is 0"),
    "draft-vocabulary-negative": ({}, {"draft_vocab_size": -1}, r"draft_vocab_size is -1"),
    "draft-vocabulary-too-large": ({}, {"draft_vocab_size": 41}, r"draft_vocab_size is 41, more than"),
    "hidden-size": ({}, {"hidden_size": 32}, r"hidden_size is 32.*fc\.weight \[16, 48\] makes it 16"),
    "target-hidden-size": ({}, {"target_hidden_size": 32}, r"target_hidden_size is 32.*target's.*16"),
    "intermediate-size": ({}, {"intermediate_size": 24}, r"intermediate_size is 24.*gate_proj"),
    "heads-that-do-not-divide": ({}, {"num_attention_heads": 3}, r"num_attention_heads is 3.*q_proj"),
    "no-heads": ({}, {"num_attention_heads": None}, r"num_attention_heads is None"),
    "kv-heads": ({}, {"num_key_value_heads": 4}, r"num_key_value_heads is 4.*k_proj.* is not 4 · 4"),
    "a-layer-is-absent": (
        {
            name.replace("layers.1.", "layers.2."): value
            for name, value in head_tensors(layers=3).items()
            if not name.startswith("layers.2.")
        },
        {"num_hidden_layers": 3},
        r"has layers \[0, 2\] but no layer 1",
    ),
    "a-layer-lacks-a-tensor": (
        {name: value for name, value in head_tensors(layers=2).items() if name != "layers.1.mlp.up_proj.weight"},
        {"num_hidden_layers": 2},
        r"missing: layers\.1\.mlp\.up_proj\.weight",
    ),
    "d2t-missing": (without("d2t", "t2d"), {}, r"24 of 40 tokens.*ship d2t.*or an lm_head of all 40"),
    "d2t-zero": (swap(d2t=torch.zeros(Vd, dtype=torch.int64)), {}, r"d2t is all zero"),
    "d2t-absolute-by-t2d": (swap(d2t=IDS.sort()[0]), {}, r"d2t looks absolute"),
    "d2t-absolute-by-range": (
        {**without("t2d"), "d2t": torch.arange(16, 40)},
        {},
        r"looks absolute: as offsets draft id 12 becomes 40",
    ),
    "d2t-absolute-by-a-repeat": (
        {**without("t2d"), "d2t": torch.arange(Vd).flip(0)},
        {},
        r"looks absolute: as offsets target id 23 comes 24 times",
    ),
    "d2t-out-of-range": (
        {**without("t2d"), "d2t": D2T.index_fill(0, torch.tensor([5]), 90)},
        {},
        r"not a map of tokens: draft id 5 becomes 95, outside 0…39",
    ),
    "d2t-with-a-repeat": (
        {**without("t2d"), "d2t": D2T.index_fill(0, torch.tensor([5]), int(IDS[7]) - 5)},
        {},
        r"not a map of tokens: target id \d+ comes 2 times",
    ),
    "d2t-against-t2d": (swap(t2d=T2D.roll(1)), {}, r"t2d disagrees at target id"),
    "d2t-of-another-length": (swap(d2t=D2T[:-1]), {}, r"d2t must be \[24\] integers, not \[23\]"),
    "d2t-of-floats": (swap(d2t=D2T.float()), {}, r"d2t must be .* integers"),
    "t2d-of-another-length": (swap(t2d=T2D[:-1]), {}, r"t2d must be \[40\]"),
    "lm-head-missing": (without("lm_head.weight"), {}, r"no lm_head\.weight \[24, 16\]"),
    "no-embedding-of-its-own-width": (
        head_tensors(hidden=12),
        {"hidden_size": 12, "target_hidden_size": HT},
        r"no embed_tokens\.weight, which it needs",
    ),
    "embedding-of-another-vocabulary": (
        head_tensors() | {"embed_tokens.weight": torch.ones(32, HT, dtype=torch.float64)},
        {},
        r"shape: embed_tokens\.weight is \[32, 16\]",
    ),
    "theta": ({}, {"rope_theta": -1}, r"rope_theta is -1"),
    "scaling": ({}, {"rope_scaling": 7}, r"rope_scaling is 7"),
    "eps": ({}, {"rms_norm_eps": "small"}, r"rms_norm_eps is 'small'"),
    "ids-of-words": ({}, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["a"]}}, r"list of integers"),
    "eagle-config": ({}, {"eagle_config": 3}, r"eagle_config"),
}


@pytest.mark.parametrize(("tensors", "config", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_head_is_one_clear_error(
    tmp_path: Path, tensors: Tensors, config: dict[str, object], text: str
) -> None:
    write_head(tmp_path, tensors or None, head_config() | config)
    with pytest.raises(WeightError, match=r"(?s)" + text):
        load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content"), [("config.json", "{"), ("config.json", "[]"), ("model.safetensors", "cut short")]
)
def test_unreadable_files(tmp_path: Path, file: str, content: str) -> None:
    (write_head(tmp_path) / file).write_text(content)
    with pytest.raises(WeightError, match=file):
        load(tmp_path)


def test_a_folder_without_its_files(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightError, match="has no weights"):
        load(tmp_path)
