"""The same head in every dialect: the same engine, the same acceptance; and in which numbering layers are listed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3.config.schema import DraftConfig, LayerIds
from eagle3.config.shape import DraftShape
from eagle3.config.support import FEATURES
from eagle3.errors import ConfigError, UnsupportedError
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead, head_names
from eagle3.models.head_config import capture_layers
from eagle3.models.head_dialects import DIALECTS
from eagle3.models.head_facts import Lender
from eagle3.models.head_names import public_names, spelled
from eagle3.models.heads import HeadReport, load_head
from eagle3.models.weights import plan
from helpers.heads import CPU, head_tensors, load, write_head
from helpers.pairs import POSITIONS, engine, random_head, random_pair
from helpers.trace import serve

Tensors = dict[str, Tensor]
IDS, NESTED, LAYER = "eagle_aux_hidden_state_layer_ids", "eagle_config", "transformer_layer_config"
OUTPUTS = (1, 4, 6)  # captured outputs of the target's eight layers, not the default ones
VOCAB, REDUCED = 8, 6


def sizes(**more: object) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        **more,
    }


def official(tensors: Tensors) -> tuple[Tensors, dict[str, Any], list[int] | None]:
    return (
        tensors,
        sizes(architectures=["LlamaForCausalLM"], draft_vocab_size=REDUCED, num_hidden_layers=40),
        [*OUTPUTS],
    )


def specforge(tensors: Tensors) -> tuple[Tensors, dict[str, Any], list[int] | None]:
    nested = {IDS: [*OUTPUTS], "use_aux_hidden_state": True}
    config = sizes(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=REDUCED, tie_word_embeddings=False)
    return tensors, config | {NESTED: nested}, None


def angelslim(tensors: Tensors) -> tuple[Tensors, dict[str, Any], list[int] | None]:
    config = sizes(architectures=["Eagle3LlamaForCausalLM"], target_model_type="qwen3", draft_vocab_size=REDUCED)
    return tensors, config | {NESTED: {IDS: [*OUTPUTS]}, "head_dim": 8}, None


def modelopt(tensors: Tensors) -> tuple[Tensors, dict[str, Any], list[int] | None]:
    nested = {
        IDS: [*OUTPUTS],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 0,
    }
    named = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items() if name != "t2d"}
    config = sizes(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=REDUCED)
    return named, config | {NESTED: nested}, None


def speculators(tensors: Tensors) -> tuple[Tensors, dict[str, Any], list[int] | None]:
    named = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    inner = sizes()
    del inner["max_position_embeddings"], inner["rms_norm_eps"]  # the defaults of a Llama's config are left out
    spoken = {"algorithm": "eagle3", "proposal_methods": [{"speculative_tokens": 3}], "verifier": {"name_or_path": "t"}}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.4.0",
        "speculators_config": spoken,
        "draft_vocab_size": REDUCED,
        "norm_before_residual": False,
        "target_hidden_size": None,
        IDS: [i + 1 for i in OUTPUTS],
        LAYER: inner,
    }
    return named, config, None


def nemo(tensors: Tensors) -> tuple[Tensors, dict[str, Any], list[int] | None]:
    named = {f"model.{name}".replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    named["lm_head.weight"] = named.pop("model.lm_head.weight")
    return named, sizes(architectures=["LlamaEagle3DraftModel"], draft_vocab_size=REDUCED), [*OUTPUTS]


Form = Callable[[Tensors], tuple[Tensors, dict[str, Any], list[int] | None]]
FORMS: dict[str, Form] = {
    "heads of the official code": official,
    "heads of SpecForge": specforge,
    "heads of AngelSlim": angelslim,
    "heads of NVIDIA ModelOpt": modelopt,
    "heads of speculators": speculators,
    "heads of NeMo": nemo,
}


def test_every_dialect_of_the_support_table_is_here() -> None:
    assert {f.name for f in FEATURES if f.built and f.name.startswith("heads of ")} == FORMS.keys()


@pytest.fixture(scope="module")
def pair() -> tuple[Decoder, Tensors]:
    """A target, and a head for it as the official code writes it; d2t in no order."""
    target, _ = random_pair(VOCAB)
    head = random_head(target, seed=5, draft_vocab=REDUCED)
    tensors = {name: part.into.clone() for name, part in plan(head, head_names("midlayer")).items()}
    tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)
    tensors["t2d"][tensors["d2t"] + torch.arange(REDUCED)] = True
    assert bool((tensors["d2t"] < 0).any())
    return target, tensors


def loaded(folder: Path, target: Decoder, form: Form, tensors: Tensors) -> tuple[EagleHead, HeadReport]:
    named, config, user = form(tensors)
    write_head(folder, named, config)
    sizes = {"max_positions": POSITIONS, "max_seq_len": POSITIONS, "device": CPU}
    head, report = load_head(folder, Lender.of(target), DraftConfig(), user, **sizes)
    return head.requires_grad_(False), report


def accepted(target: Decoder, head: EagleHead, layers: tuple[int, ...]) -> list[list[int]]:
    shape = DraftShape(2, 2, 5)
    prompts = [[i, 3, 5][: 1 + i % 3] for i in range(4)]
    built = engine(target, (head, layers), shape, batch=4)
    return [trace.accepted for trace in serve(built, prompts, [{"max_new_tokens": 20}] * 4)]


def test_the_same_engine_and_the_same_acceptance(tmp_path: Path, pair: tuple[Decoder, Tensors]) -> None:
    target, tensors = pair
    heads = {name: loaded(tmp_path / name, target, form, tensors) for name, form in FORMS.items()}
    first, _ = heads["heads of the official code"]
    want = accepted(target, first, OUTPUTS)
    assert sum(map(sum, want)) >= 8
    assert accepted(target, first, tuple(i + 1 for i in OUTPUTS)) != want, "a wrong numbering would not be seen"
    for name, (head, report) in heads.items():
        assert head.facts == first.facts, name
        assert report.capture.outputs == OUTPUTS, name
        ours = head.state_dict()
        assert ours.keys() == first.state_dict().keys(), name
        assert all(torch.equal(value, ours[key]) for key, value in first.state_dict().items()), name
        assert accepted(target, head, report.capture.outputs) == want, name


def test_a_full_vocabulary_without_maps(tmp_path: Path) -> None:
    target, head = random_pair(VOCAB)
    length = head.facts.rope.max_position_embeddings
    tensors = {name: part.into.clone() for name, part in plan(head, head_names("midlayer")).items()}
    assert "d2t" not in tensors
    for name, form in FORMS.items():
        named, config, user = form(tensors)
        write_head(tmp_path / name, named, config | {"draft_vocab_size": VOCAB})
        sizes = {"max_positions": POSITIONS, "max_seq_len": POSITIONS, "device": CPU}
        found, _ = load_head(tmp_path / name, Lender.of(target), DraftConfig(), user, **sizes)
        assert found.d2t is None, name
        rope = replace(found.facts.rope, max_position_embeddings=length)
        assert replace(found.facts, rope=rope) == head.facts, name


LISTS: list[tuple[dict[str, Any], int, tuple[int, ...]]] = [
    # of heads that are published: config, layers of the target, outputs
    ({NESTED: {IDS: [1, 17, 33]}}, 36, (1, 17, 33)),
    ({NESTED: {IDS: [24, 30, 36], "use_last_layernorm": True}}, 36, (23, 29, 35)),
    ({NESTED: {IDS: [1, 46, 90]}}, 94, (1, 46, 90)),
    ({IDS: [2, 30, 58]}, 61, (1, 29, 57)),
    ({IDS: [2, 16, 29], "speculators_model_type": "eagle3"}, 32, (1, 15, 28)),
    ({IDS: [7, 9, 20], LAYER: {}}, 32, (6, 8, 19)),
    ({NESTED: {IDS: [7, 9, 20], "use_mtp_layernorm": False}}, 32, (7, 9, 20)),
    ({NESTED: {IDS: [7, 9, 20]}, "target_model_type": "qwen3"}, 32, (7, 9, 20)),
]


@pytest.mark.parametrize(("config", "layers", "want"), LISTS)
def test_lists_of_layers(config: dict[str, Any], layers: int, want: tuple[int, ...]) -> None:
    assert capture_layers(None, config, LayerIds.auto, layers, 3).outputs == want


def test_the_user_settles_what_a_list_means() -> None:
    config = {NESTED: {IDS: [7, 9, 20]}, "architectures": ["LlamaForCausalLMEagle3"]}
    with pytest.raises(ConfigError, match=r"draft\.layer_ids_convention"):
        capture_layers(None, config, LayerIds.auto, 32, 3)
    for told, want in ((LayerIds.output, (7, 9, 20)), (LayerIds.input, (6, 8, 19))):
        assert capture_layers(None, config, told, 32, 3).outputs == want
    spoken = {IDS: [7, 9, 20], "speculators_model_type": "eagle3"}
    assert capture_layers(None, spoken, LayerIds.output, 32, 3).outputs == (7, 9, 20)


def test_a_layer_of_qwen3_has_norms_of_queries_and_keys(tmp_path: Path) -> None:
    tensors = {name.replace("midlayer.", "layers.0."): t for name, t in head_tensors(qk_norm=True).items()}
    inner = {
        "model_type": "qwen3",
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "vocab_size": 40,
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
    }
    config = {"speculators_model_type": "eagle3", "draft_vocab_size": 24, "norm_before_residual": True, LAYER: inner}
    head, report = load(write_head(tmp_path / "a", tensors, config))
    assert head.facts.qk_norm
    assert head.facts.norm_before_residual
    assert (head.facts.rope.theta, head.facts.rope.max_position_embeddings) == (1e6, 32768)
    assert not report.warnings
    del config["norm_before_residual"]
    with pytest.raises(UnsupportedError, match=r"does not say norm_before_residual.*write into it"):
        load(write_head(tmp_path / "b", tensors, config))


def test_old_names_of_norms_before_fc() -> None:
    names = {"fc_norm.0.weight": "low", "fc_norm.1.weight": "mid", "fc_norm.2.weight": "high"}
    assert public_names(f"aux_norm_{old}.weight" for old in names.values()) == {
        f"aux_norm_{old}.weight": name for name, old in names.items()
    }


def test_the_lone_norm_of_an_ordinary_layer_has_one_name() -> None:
    assert public_names(["layers.1.input_layernorm.weight"]) == {
        "layers.1.input_layernorm.weight": "layers.1.hidden_norm.weight"
    }
    both = ["layers.1.input_layernorm.weight", "layers.1.hidden_norm.weight", "layers.0.input_layernorm.weight"]
    assert public_names(both) == {name: name for name in both}
    projected = ["eh_proj.weight", "layers.0.input_layernorm.weight"]
    assert public_names(projected)["layers.0.input_layernorm.weight"] == "layers.0.hidden_norm.weight"


@pytest.mark.parametrize("prefix", ["", "draft_model."])
@pytest.mark.parametrize("to", DIALECTS)
def test_a_tensor_that_a_file_lacks_is_told_by_the_name_that_it_would_have(to: str, prefix: str) -> None:
    target, two = random_pair(VOCAB)[0], {} if to == "midlayer" else {"layers": 2}
    facts = random_head(target, draft_vocab=REDUCED, **two).facts
    wanted = plan(random_head(target, draft_vocab=REDUCED, **two), head_names("layers.{i}"))
    whole = {name: prefix + DIALECTS[to].stored(name, facts) for name in wanted}
    for lost in wanted:
        assert spelled(wanted, {name: stored for name, stored in whole.items() if name != lost}) == whole, lost


@pytest.mark.parametrize("second", ["layers.1.", "midlayer.1."])
def test_no_two_tensors_that_are_told_have_one_name(second: str) -> None:
    target = random_pair(VOCAB)[0]
    wanted = plan(random_head(target, draft_vocab=REDUCED, layers=2), head_names("layers.{i}"))
    whole = {name: name.replace("layers.0.", "midlayer.").replace("layers.1.", second) for name in wanted}
    if second == "layers.1.":  # an ordinary layer's one norm
        whole["layers.1.hidden_norm.weight"] = "layers.1.input_layernorm.weight"
    for lost in wanted:
        found = spelled(wanted, {name: stored for name, stored in whole.items() if name != lost})
        assert len(set(found.values())) == len(wanted), lost
        assert found[lost] == whole[lost], lost


def test_names_that_look_like_a_layers_and_a_head_that_stands_outside() -> None:
    stored = {
        "layers.x": "layers.x",
        "fc.weight": "model.fc.weight",
        "d2t": "model.d2t",
        "lm_head.weight": "lm_head.weight",
    }
    assert spelled(["norm.weight"], stored) == {"norm.weight": "model.norm.weight"}
