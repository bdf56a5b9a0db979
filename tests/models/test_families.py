"""Each family's logits are transformers', and what a config asks beyond a family is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_llama import CPU, TINY, Requests, decoder_of, drawn, random_model, same_decoder
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from eagle3.config.schema import Architecture
from eagle3.errors import UnsupportedError, WeightError
from eagle3.models.decoder import Decoder, ModelFacts
from eagle3.models.families import FAMILIES
from eagle3.models.weights import dummy_weights

TOLERANCE = {"rtol": 0.0, "atol": 1e-10}
FULL, SLIDES = "full_attention", "sliding_attention"
SLIDING = {"use_sliding_window": True, "sliding_window": 5}
# name -> a config of transformers, each layer's window
CONFIGS: dict[str, tuple[type[PretrainedConfig], dict[str, Any], tuple[int | None, ...]]] = {
    "llama-2": (LlamaConfig, {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}, ()),
    "qwen2": (Qwen2Config, {}, ()),
    "qwen2-tied": (Qwen2Config, {"tie_word_embeddings": True, "num_key_value_heads": 1}, ()),
    "qwen2-window-off": (Qwen2Config, {"sliding_window": 3, "use_sliding_window": False}, ()),
    "qwen2-upper-layers-slide": (Qwen2Config, SLIDING | {"num_hidden_layers": 3, "max_window_layers": 1}, (None, 5, 5)),
    "qwen2-layer-types": (Qwen2Config, SLIDING | {"layer_types": [SLIDES, FULL]}, (5, None)),
    "qwen3": (Qwen3Config, {"head_dim": 12}, ()),
    "qwen3-bias": (Qwen3Config, {"head_dim": 12, "attention_bias": True}, ()),
    "qwen3-slides": (Qwen3Config, SLIDING | {"head_dim": 12, "max_window_layers": 1}, (None, 5)),
    "mistral": (MistralConfig, {"sliding_window": 7}, (7, 7)),
    "mistral-one": (MistralConfig, {"sliding_window": 1}, (1, 1)),
    "mistral-wide": (MistralConfig, {"sliding_window": 60}, (60, 60)),
    "mistral-null": (MistralConfig, {"sliding_window": None, "head_dim": 6}, ()),
}


def made(name: str) -> Any:
    kind, changes, _ = CONFIGS[name]
    return random_model(kind(**TINY | changes))


def ids_of(length: int, seed: int = 1) -> list[int]:
    return torch.randint(0, 61, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def reference(model: Any, ids: list[int]) -> Tensor:
    out: Tensor = model(torch.tensor([ids])).logits[0]
    return out


@pytest.mark.parametrize("name", CONFIGS)
def test_windows_are_those_of_the_config(name: str) -> None:
    kind, changes, windows = CONFIGS[name]
    config = kind(**TINY | changes)
    config.architectures = [f"{kind.__name__.removesuffix('Config')}ForCausalLM"]
    assert ModelFacts.from_hf(config).windows == windows


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("page", "chunk"), [(4, 33), (1, 3), (16, 16)])
def test_ragged_prompts_in_chunks_equal_transformers(name: str, page: int, chunk: int, tmp_path: Path) -> None:
    model = made(name)
    prompts = [ids_of(19, 2), ids_of(7, 3), ids_of(33, 4)]
    requests = Requests(same_decoder(model, tmp_path), 3, page)
    ours: list[list[Tensor]] = [[], [], []]
    for start in range(0, 33, chunk):
        for b, logits in enumerate(requests.prompt([p[start : start + chunk] for p in prompts])):
            ours[b].append(logits)
    for prompt, chunks in zip(prompts, ours, strict=True):
        torch.testing.assert_close(torch.cat(chunks), reference(model, prompt), **TOLERANCE)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_path_of_a_tree_equals_transformers(name: str, tmp_path: Path) -> None:
    """Prompts shorter and longer than a window, and a path that is longer than one."""
    parents = [[-1, 0, 0, 1, 2, 2, 4, 6, 7, 8], [-1, 0, 1, 2, 3, 4, 5, 6, 0, 0]]
    prompts = [ids_of(19, 7), ids_of(4, 8)]
    model = made(name)
    requests = Requests(same_decoder(model, tmp_path), 2, page=4)
    requests.prompt(prompts)
    tokens = torch.tensor([ids_of(10, 9), ids_of(10, 10)])
    paths, depth, mask = drawn(parents)
    logits = requests.tree(tokens, depth, mask)
    for b, prompt in enumerate(prompts):
        for node, path in enumerate(paths[b]):
            expected = reference(model, prompt + tokens[b, path].tolist())[-1]
            torch.testing.assert_close(logits[b, node], expected, **TOLERANCE)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_chain_without_a_mask_equals_transformers(name: str, tmp_path: Path) -> None:
    model, ids = made(name), ids_of(21)
    requests = Requests(same_decoder(model, tmp_path), 1, page=4)
    requests.prompt([ids[:11]])
    logits = requests.tree(torch.tensor([ids[11:]]), torch.arange(10)[None], mask=None)
    torch.testing.assert_close(logits[0], reference(model, ids)[11:], **TOLERANCE)


def test_norms_of_heads_are_not_passed_over_by_a_family_without(tmp_path: Path) -> None:
    made("qwen3-bias").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("Qwen3ForCausalLM", "Qwen2ForCausalLM").replace('"qwen3"', '"qwen2"'))
    with pytest.raises(WeightError, match=r"left over: model\.layers\.0\.self_attn\.k_norm\.weight \[12\]"):
        decoder_of(tmp_path)


def inline(architecture: str, **changes: object) -> Architecture:
    names = {key: value for key, value in TINY.items() if key != "initializer_range"}
    return Architecture(architecture=architecture, **names | changes)


@pytest.mark.parametrize(
    ("name", "architecture", "changes"),
    [
        ("qwen2", "Qwen2ForCausalLM", {}),
        ("qwen2-layer-types", "Qwen2ForCausalLM", {"sliding_window": 5, "layer_types": [SLIDES, FULL]}),
        ("qwen3-bias", "Qwen3ForCausalLM", {"head_dim": 12, "attention_bias": True}),
        ("mistral", "MistralForCausalLM", {"sliding_window": 7}),
        ("mistral-null", "MistralForCausalLM", {"head_dim": 6}),
    ],
)
def test_inline_facts_equal_those_of_the_files(
    name: str, architecture: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    made(name).save_pretrained(tmp_path)
    ours = ModelFacts.from_architecture(inline(architecture, **changes))
    assert ours.differences(ModelFacts.from_hf(tmp_path)) == []


def test_a_window_in_one_description_alone_is_told() -> None:
    ours, theirs = (inline("MistralForCausalLM", sliding_window=window) for window in (3, None))
    assert ModelFacts.from_architecture(ours).differences(ModelFacts.from_architecture(theirs)) == [
        "sliding_window, layer_types: [3, 3] here, [] there"
    ]


def test_the_furthest_look_back_is_that_of_the_whole_model() -> None:
    def window(**changes: object) -> int | None:
        return ModelFacts.from_architecture(inline("Qwen2ForCausalLM", **changes)).window

    assert window() is None
    assert window(sliding_window=5) == 5
    assert window(sliding_window=5, layer_types=[SLIDES, FULL]) is None


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (
            MistralConfig(sliding_window=4, layer_types=[SLIDES] * 31 + [FULL]),
            UnsupportedError,
            f"with layers of {FULL}",
        ),
        (LlamaConfig(layer_types=[SLIDES] * 32), UnsupportedError, f"LlamaForCausalLM with layers of {SLIDES}"),
        (Qwen2Config(layer_types=["chunked_attention"] * 32), UnsupportedError, "layers of chunked_attention"),
        (Qwen2Config(layer_types=[SLIDES] * 32), WeightError, "there is no sliding_window"),
        (MistralConfig(sliding_window=0), WeightError, "at least 1, got 0"),
        (Qwen3Config(hidden_act="gelu"), UnsupportedError, "gelu"),
        (Qwen2Config(quantization_config={"quant_method": "awq"}), UnsupportedError, "quantised"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_a_config_asks_beyond_its_family_is_refused(
    config: PretrainedConfig, error: type[Exception], message: str
) -> None:
    config.architectures = [f"{type(config).__name__.removesuffix('Config')}ForCausalLM"]
    with pytest.raises(error, match=message):
        ModelFacts.from_hf(config)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("Qwen2ForCausalLM", {"sliding_window": 2, "layer_types": [SLIDES]}, "names 1 layers of 2"),
        ("Qwen2ForCausalLM", {"layer_types": [SLIDES, FULL]}, "no sliding_window"),
    ],
)
def test_inline_facts_that_make_no_sense(architecture: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightError, match=message):
        ModelFacts.from_architecture(inline(architecture, **changes))


def test_dummy_norms_of_heads_are_ones() -> None:
    facts = ModelFacts.from_architecture(inline("Qwen3ForCausalLM"))
    model = Decoder(facts, max_positions=8, max_seq_len=8, dtype=torch.float32, device=CPU)
    dummy_weights(model)
    assert all(layer.attn.q_norm.weight.eq(1).all() for layer in model.layers)
    assert all(layer.attn.k_norm.weight.eq(1).all() for layer in model.layers)


def test_every_family_is_compared_with_transformers() -> None:
    assert {f"{kind.__name__.removesuffix('Config')}ForCausalLM" for kind, _, _ in CONFIGS.values()} == set(FAMILIES)
