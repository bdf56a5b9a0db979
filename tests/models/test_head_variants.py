"""What heads compute beyond the plain one: logits and feedback against the restatement, and what an engine drafts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3.config.schema import DraftConfig
from eagle3.config.shape import DraftShape
from eagle3.errors import ConfigError, Eagle3Error, UnsupportedError, WeightError
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from eagle3.models.head_dialects import BEYOND
from eagle3.models.head_facts import Lender
from eagle3.models.heads import load_head
from helpers.heads import CPU, HT, L, V, Vd, assert_follows, head_config, head_tensors, load, random_lender, write_head
from helpers.pairs import POSITIONS, engine, facts, random_target
from helpers.slots import held
from oracles.dense import target_pass
from oracles.plain_head import EPS, Plain

NESTED = "eagle_config"


@dataclass(frozen=True)
class Row:
    """A variant: what its files hold, what a user must say of it, what the restatement must be told."""

    tensors: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    draft: DraftConfig = field(default_factory=DraftConfig)
    more: tuple[str, ...] = ()


def nested(**fields: object) -> dict[str, Any]:
    return {NESTED: fields}


ROWS = {
    "plain": Row(),
    "norm_before_residual": Row(config={"norm_before_residual": True}, more=("norm_before_residual",)),
    "norm_before_fc": Row({"norm_before_fc": True}, {"norm_before_fc": True}),
    "norm_before_fc, nested": Row({"norm_before_fc": True}, nested(norm_before_fc=True)),
    "fc_norm": Row({"fc_norm": True}, {"fc_norm": True}),
    "norm_output": Row(config={"norm_output": True}, more=("norm_output",)),
    "EAGLE-3.1": Row({"fc_norm": True}, {"fc_norm": True, "norm_output": True}, more=("norm_output",)),
    "return_hidden_post_norm": Row(config=nested(return_hidden_post_norm=True), more=("norm_output",)),
    "norm_output of old": Row(config={"norm_output": True}, draft=DraftConfig(norm_output_feeds_back=False)),
    "use_qk_norm": Row({"qk_norm": True}),
    "use_qk_norm, several layers": Row({"qk_norm": True, "layers": 2}, {"use_qk_norm": True}),
    "draft.normed_twice": Row(draft=DraftConfig(normed_twice=True), more=("normed_twice",)),
    "use_aux_hidden_state=false": Row({"fc": False}, nested(use_aux_hidden_state=False)),
    "eh_proj_before_attn": Row({"eh_proj": True}, nested(eh_proj_before_attn=True)),
    "eh_proj_before_attn, bias, two layers": Row(
        {"eh_proj": True, "eh_bias": True, "layers": 2}, nested(eh_proj_before_attn=True, eh_proj_bias=True)
    ),
    "several layers": Row({"layers": 3}, nested(next_layer_regular=True)),
    "next_layer_regular=false": Row({"layers": 3, "all_pair": True}, nested(next_layer_regular=False)),
    "a bias of fc": Row({"fc_bias": True}, {"bias": True}),
    "another width": Row({"hidden": 12, "own_embedding": True}, {"hidden_size": 12, "target_hidden_size": HT}),
}


def written(folder: Path, row: Row, tensors: dict[str, Tensor]) -> Path:
    config = {"num_hidden_layers": row.tensors.get("layers", 1), "rms_norm_eps": EPS, **row.config}
    return write_head(folder, tensors, head_config(**config))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_logits_and_feedback(tmp_path: Path, row: Row) -> None:
    tensors, lender = head_tensors(**row.tensors), random_lender()
    head, report = load(written(tmp_path, row, tensors), row.draft, lender=lender)
    assert all("ships an embedding" in line for line in report.warnings)
    plain = Plain(tensors, lender, 4, 2, 10000.0, row.more)
    assert_follows(head.requires_grad_(False), plain)
    if row.more:
        with pytest.raises(AssertionError):
            assert_follows(head, Plain(tensors, lender, 4, 2, 10000.0))


def test_all_that_a_dialect_may_lack_has_a_row() -> None:
    assert BEYOND.keys() <= ROWS.keys()


def captured_of(target: Decoder, tokens: list[int], layers: tuple[int, ...]) -> Tensor:
    """[T, C·Ht] of the target, restated."""
    outputs, _ = target_pass(target, tokens)
    last = torch.tensor(outputs[-1])
    final = last / (last.square().mean(-1, keepdim=True) + target.facts.eps).sqrt() * target.norm.weight
    return torch.cat([final if i == -1 else torch.tensor(outputs[i]) for i in layers], dim=1)


def chain_of(plain: Plain, head: EagleHead, captured: Tensor, tokens: list[int], root: int, depth: int) -> list[int]:
    """The guesses after the root at position `root`, by the restatement."""
    ids, features, guesses = torch.tensor(tokens[1 : root + 1]), plain.fuse(captured[:root]), []
    for _ in range(depth):
        logits, fed = plain(ids, features)
        guesses.append(int(head.to_target(logits[-1:].argmax(1))))
        ids, features = torch.cat([ids, torch.tensor(guesses[-1:])]), torch.cat([features, fed[-1:]])
    return guesses


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_an_engine_drafts_what_the_restatement_guesses(tmp_path: Path, row: Row) -> None:
    target = random_target(facts(V, hidden=HT, layers=L))
    tensors, lender, shape = head_tensors(**row.tensors), Lender.of(target), DraftShape(3, 1, 4)
    folder = written(tmp_path, row, tensors)
    sizes = {"max_positions": POSITIONS, "max_seq_len": POSITIONS, "device": CPU}
    head, report = load_head(folder, lender, row.draft, None, **sizes)
    layers = report.capture.outputs
    prompt = [3, 1, 4, 1]
    (known,) = engine(target, batch=1).generate([prompt], [{"max_new_tokens": 9}])
    tokens = [*prompt, *known.token_ids]
    plain = Plain(tensors, lender, 4, 2, 10000.0, row.more)
    captured = captured_of(target, tokens, layers)

    built = engine(target, (head.requires_grad_(False), layers), shape, batch=1)
    built.add(prompt, request_id="0", max_new_tokens=5)
    seen = 0
    while not built.idle:
        built.step()
        slots = built.runner.worker.slots
        root = int(slots.length[0])
        if len(prompt) <= root < len(tokens) - 1 and not built.idle:
            tree = held(slots, [0]).tree.tokens[0].tolist()
            assert tree == [tokens[root], *chain_of(plain, head, captured, tokens, root, 3)]
            seen += 1
    assert seen >= 3


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], DraftConfig, type[Eagle3Error], str]] = {
    "input_norm, not said": ({"norm_before_fc": True}, {}, DraftConfig(), WeightError, r"left over: input_norm"),
    "said, no input_norm": ({}, {"norm_before_fc": True}, DraftConfig(), WeightError, r"missing: input_norm\.weight"),
    "said, no fc_norm": ({}, {"fc_norm": True}, DraftConfig(), WeightError, r"missing: fc_norm\.0\.weight"),
    "fc_norm, not said": ({"fc_norm": True}, {}, DraftConfig(), WeightError, r"left over: fc_norm\.0"),
    "said, no query norm": ({}, {"use_qk_norm": True}, DraftConfig(), WeightError, r"missing: .*q_norm\.weight"),
    "said, no eh_proj": (
        {},
        nested(eh_proj_before_attn=True),
        DraftConfig(),
        WeightError,
        r"must read 16, what eh_proj",
    ),
    "eh_proj, not said": ({"eh_proj": True}, {}, DraftConfig(), WeightError, r"must read 2 · 16"),
    "no fc, not said": ({"fc": False}, {}, DraftConfig(), WeightError, r"lacks fc\.weight"),
    "fc, said to be none": (
        {},
        nested(use_aux_hidden_state=False),
        DraftConfig(),
        WeightError,
        r"left over: fc\.weight",
    ),
    "no fc, another width": (
        {"fc": False, "hidden": 12, "own_embedding": True},
        {"hidden_size": 12, "target_hidden_size": HT, NESTED: {"use_aux_hidden_state": False}},
        DraftConfig(),
        WeightError,
        r"its hidden size 12 must be the target's 16",
    ),
    "no fc, but layers": (
        {"fc": False},
        nested(use_aux_hidden_state=False, eagle_aux_hidden_state_layer_ids=[1, 2, 3]),
        DraftConfig(),
        UnsupportedError,
        r"use_aux_hidden_state=false and .*\[1, 2, 3\] contradict",
    ),
    "both norms before fc": (
        {},
        {"norm_before_fc": True, "fc_norm": True},
        DraftConfig(),
        UnsupportedError,
        "norm_before_fc and fc_norm exclude each other",
    ),
    "a norm before no fc": (
        {"fc": False},
        {"norm_before_fc": True, NESTED: {"use_aux_hidden_state": False}},
        DraftConfig(),
        UnsupportedError,
        "norm_before_fc and use_aux_hidden_state=false exclude",
    ),
    "normed twice, and before the residual": (
        {},
        {"norm_before_residual": True},
        DraftConfig(normed_twice=True),
        UnsupportedError,
        "normed_twice and norm_before_residual exclude",
    ),
    "two words for the feedback": (
        {},
        {"norm_output": False, NESTED: {"return_hidden_post_norm": True}},
        DraftConfig(),
        UnsupportedError,
        "norm_output=False and return_hidden_post_norm=True contradict",
    ),
    "no norm before the output head": (
        {},
        {"norm_output": False},
        DraftConfig(norm_output_feeds_back=False),
        UnsupportedError,
        "without a norm before its output head",
    ),
    "a switch that is a word": (
        {},
        {"fc_norm": "yes"},
        DraftConfig(),
        WeightError,
        "fc_norm is 'yes', must be true or",
    ),
    "MLA": ({}, {"kv_lora_rank": 512}, DraftConfig(), UnsupportedError, "kv_lora_rank=512"),
}


@pytest.mark.parametrize(("tensors", "config", "draft", "error", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_by_name(
    tmp_path: Path,
    tensors: dict[str, Any],
    config: dict[str, Any],
    draft: DraftConfig,
    error: type[Eagle3Error],
    text: str,
) -> None:
    write_head(tmp_path, head_tensors(**tensors), head_config(**config))
    with pytest.raises(error, match=r"(?s)" + text):
        load(tmp_path, draft)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("layers.0.self_attn.kv_a_proj_with_mqa.weight", "multi-head latent attention"),
        ("mask_hidden", "parallel drafting"),
        ("parallel_draft_heads.0.medusa_layers.0.linear.weight", "Medusa"),
        ("midlayer.mlp.up_proj.weight_scale", "quantised weights"),
    ],
)
def test_other_kinds_of_heads_are_told_by_their_tensors(tmp_path: Path, name: str, what: str) -> None:
    write_head(tmp_path, head_tensors() | {name: torch.ones(2)})
    with pytest.raises(UnsupportedError, match=rf"{what}.* is not supported"):
        load(tmp_path)


def test_a_head_of_the_final_norm_reads_nothing_else(tmp_path: Path) -> None:
    write_head(tmp_path, head_tensors(fc=False), head_config(**nested(use_aux_hidden_state=False)))
    head, report = load(tmp_path, user=[-1])
    assert (report.capture.outputs, head.facts.captured, head.facts.fc) == ((-1,), 1, False)
    with pytest.raises(ConfigError, match=r"spec\.layers_to_capture: the head reads the final norm's output alone"):
        load(tmp_path, user=[3])


def test_layers_that_config_and_tensors_tell_otherwise(tmp_path: Path) -> None:
    config = head_config(num_hidden_layers=2, **nested(next_layer_regular=False))
    head, report = load(write_head(tmp_path, head_tensors(layers=2), config))
    assert not head.facts.all_layers_pair
    assert report.warnings == ("next_layer_regular is False in config.json, the tensors say True; tensors win",)
    assert head.facts.draft_vocab == Vd
