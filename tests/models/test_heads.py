"""Heads from files: dialects, what is borrowed, warnings and the report; and heads without weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle3.config.schema import Architecture, DraftConfig, Embedding, LayerIds
from eagle3.errors import ConfigError, WeightError
from eagle3.models.head_config import CaptureChoice
from eagle3.models.heads import HeadReport, dummy_head
from helpers.heads import (
    CPU,
    HT,
    V,
    Vd,
    head_config,
    head_tensors,
    load,
    random_lender,
    unsorted_map,
    write_head,
)

Tensors = dict[str, Tensor]
LENDER = random_lender()


def without(*names: str) -> Tensors:
    return {name: value for name, value in head_tensors().items() if name not in names}


def origins(report: HeadReport) -> dict[str, str]:
    return {name: origin for name, origin, _ in report.origins}


@pytest.mark.parametrize("kind", ["safetensors", "sharded", "bin"])
def test_every_kind_of_file_gives_the_same_head(tmp_path: Path, kind: str) -> None:
    tensors = head_tensors()
    head, report = load(write_head(tmp_path, tensors, kind=kind))
    assert torch.equal(head.fc.weight, tensors["fc.weight"])
    assert torch.equal(head.d2t, tensors["d2t"])
    qkv = torch.cat([tensors[f"midlayer.self_attn.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(head.layers[0].attn.qkv.weight, qkv)
    assert not report.warnings
    assert origins(report)["t2d"] == "draft"
    assert origins(report)["embed.weight"] == "borrowed"


def _renamed(change: Callable[[str], str]) -> Tensors:
    return {change(name): value for name, value in head_tensors().items()}


DIALECTS: dict[str, Tensors] = {
    "layers.0": _renamed(lambda name: name.replace("midlayer.", "layers.0.")),
    "model.": _renamed(lambda name: "model." + name.replace("midlayer.", "layers.0.")),
    "draft_model.": _renamed(lambda name: "draft_model." + name),
    "draft_id_to_target_id": _renamed(lambda name: name.replace("d2t", "draft_id_to_target_id")),
    "raw": _renamed(
        lambda name: (
            name.replace("midlayer.hidden_norm", "hidden_norm")
            .replace("midlayer.input_layernorm", "input_embeds_norm")
            .replace("midlayer.", "layers.0.")
            .replace("lm_head", "eagle_lm_head")
        )
    ),
    "leftovers": head_tensors() | {"verifier_norm.weight": torch.ones(HT), "target_model.x": torch.ones(2)},
    "inv_freq": head_tensors() | {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(2)},
    "no-t2d": without("t2d"),
}


@pytest.mark.parametrize("tensors", DIALECTS.values(), ids=DIALECTS.keys())
def test_dialects_of_names(tmp_path: Path, tensors: Tensors) -> None:
    want = load(write_head(tmp_path / "a"))[0].state_dict()
    got = load(write_head(tmp_path / "b", tensors))[0].state_dict()
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize(
    ("config", "warning"),
    [
        (
            {"num_hidden_layers": 40},
            "num_hidden_layers is 40 in config.json, the tensors say 1; tensors win",
        ),
        ({"head_dim": 80}, "head_dim is 80 in config.json, the tensors say 4; tensors win"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is ignored: it guesses 24 of 40 tokens"),
        ({"bias": True}, "bias is True in config.json, the tensors say False; tensors win"),
        (
            {"attention_bias": True},
            "attention_bias is True in config.json, the tensors say False; tensors win",
        ),
    ],
)
def test_warnings(tmp_path: Path, config: dict[str, object], warning: str) -> None:
    _, report = load(write_head(tmp_path, config=head_config() | config))
    assert report.warnings == (warning,)
    assert f"warning: {warning}" in str(report).splitlines()


def test_a_shipped_embedding_is_used_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    tensors = head_tensors(own_embedding=True)
    write_head(tmp_path, tensors)
    for choice in (Embedding.auto, Embedding.own):
        head, report = load(tmp_path, DraftConfig(embedding=choice))
        assert head.embed is not None
        assert torch.equal(head.embed.weight, tensors["embed_tokens.weight"])
        assert "its own is used" in report.warnings[0]
    head, report = load(tmp_path, DraftConfig(embedding=Embedding.target))
    assert head.embed is None
    far = (tensors["embed_tokens.weight"] - LENDER.embed.weight).abs().max()
    assert report.warnings == (
        f"the head ships an embedding that differs from the target's by up to {far:.3g};"
        " the target's is used (draft.embedding)",
    )
    assert "not needed" in str(report)


def test_a_copy_of_the_targets_embedding_is_no_warning(tmp_path: Path) -> None:
    tensors = head_tensors() | {"embed_tokens.weight": LENDER.embed.weight.detach().clone()}
    assert not load(write_head(tmp_path, tensors))[1].warnings


def test_an_embedding_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"draft\.embedding: .* ships no embed_tokens"):
        load(write_head(tmp_path / "a"), DraftConfig(embedding=Embedding.own))
    config = head_config(hidden_size=12, target_hidden_size=HT)
    folder = write_head(tmp_path / "b", head_tensors(hidden=12, own_embedding=True), config)
    with pytest.raises(ConfigError, match=r"draft\.embedding: the head's hidden size is 12"):
        load(folder, DraftConfig(embedding=Embedding.target))
    assert load(folder)[0].fc.weight.shape == (12, 3 * HT)


def test_lm_head_is_borrowed_for_a_full_vocabulary_only(tmp_path: Path) -> None:
    tensors = head_tensors(draft_vocab=V)
    own, _ = load(write_head(tmp_path / "a", tensors, head_config(draft_vocab_size=V)))
    assert own.lm_head is not None
    assert torch.equal(own.lm_head.weight, tensors["lm_head.weight"])
    del tensors["lm_head.weight"]
    head, report = load(write_head(tmp_path / "b", tensors, head_config(draft_vocab_size=None)))
    assert origins(report)["lm_head.weight"] == "borrowed"
    out = torch.randn(2, HT, dtype=torch.float64)
    assert LENDER.lm_head is not None
    assert torch.equal(head.logits(out), LENDER.lm_head(out))


def test_a_map_is_told_and_hashed(tmp_path: Path) -> None:
    _, one = load(write_head(tmp_path / "a"))
    other, t2d = unsorted_map(seed=4)
    _, two = load(write_head(tmp_path / "b", head_tensors() | {"d2t": other, "t2d": t2d}))
    _, same = load(write_head(tmp_path / "c", head_tensors() | {"d2t": head_tensors()["d2t"].int()}))
    assert one.vocabulary == "24 of 40 tokens (60.0 %)"
    assert one.d2t_hash == same.d2t_hash != two.d2t_hash
    zeros = head_tensors(draft_vocab=V) | {
        "d2t": torch.zeros(V, dtype=torch.int64),
        "t2d": torch.ones(V, dtype=torch.bool),
    }
    head, full = load(write_head(tmp_path / "d", zeros, head_config(draft_vocab_size=V)))
    assert head.d2t is None
    assert (full.vocabulary, full.d2t_hash) == ("identity map (full vocabulary)", None)


def test_both_numberings_are_printed(tmp_path: Path) -> None:
    config = head_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 4, 8]})
    _, report = load(write_head(tmp_path, config=config))
    line = "captures: outputs of layers [1, 3, 7] = inputs of layers [2, 4, 8], from the head's config, read as"
    assert f"{line} inputs" in str(report).splitlines()
    final = str(CaptureChoice((-1, 3), "user", LayerIds.output))
    assert final == "outputs of layers [-1, 3] = inputs of layers [final norm, 4], from spec.layers_to_capture"


def architecture(**overrides: object) -> Architecture:
    facts: dict[str, object] = {
        "hidden_size": HT,
        "intermediate_size": 20,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": V,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "draft_vocab_size": Vd,
    }
    return Architecture(**facts | overrides)


def test_an_inline_architecture_must_fit_the_files(tmp_path: Path) -> None:
    write_head(tmp_path)
    load(tmp_path, DraftConfig(architecture=architecture()))
    with pytest.raises(ConfigError, match=r"draft\.architecture: .*:\n  intermediate_size: 28 here, 20 there"):
        load(tmp_path, DraftConfig(architecture=architecture(intermediate_size=28)))


@pytest.mark.parametrize("overrides", [{}, {"draft_vocab_size": None}, {"hidden_size": 8, "target_hidden_size": HT}])
def test_dummy_heads(overrides: dict[str, object]) -> None:
    size = {"max_positions": 40, "max_seq_len": 32, "device": CPU, "dtype": torch.float32}
    head, report = dummy_head(architecture(**overrides), LENDER, None, **size)
    again, _ = dummy_head(architecture(**overrides), LENDER, None, **size)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in head.state_dict().items())
    assert report.capture.outputs == (1, 3, 4)
    ids = head.to_target(torch.arange(head.draft_vocab))
    assert bool((ids.diff() > 0).all())
    assert 0 <= int(ids[0]) <= int(ids[-1]) < V
    assert len(ids) == (V if "draft_vocab_size" in overrides else Vd)


def test_a_dummy_head_must_fit_its_target() -> None:
    with pytest.raises(WeightError, match="target_hidden_size: 8 here, 16 there"):
        dummy_head(
            architecture(hidden_size=8),
            LENDER,
            None,
            max_positions=40,
            max_seq_len=32,
            device=CPU,
            dtype=torch.float32,
        )
