from pathlib import Path

import pytest
import torch
from hf_llama import CPU, Requests, drawn, random_llama, same_decoder
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3.config.schema import Architecture
from eagle3.config.support import TARGETS
from eagle3.errors import UnsupportedError, WeightError
from eagle3.models.decoder import Decoder, ModelFacts
from eagle3.models.families import FAMILIES
from eagle3.parallel import TP

TOLERANCE = {"rtol": 0.0, "atol": 1e-10}
SHAPES = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "wide-heads": {"head_dim": 20},
    "narrow-heads": {"head_dim": 6},
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"mlp_bias": True},
}


def ids_of(length: int, seed: int = 1) -> list[int]:
    return torch.randint(0, 61, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def reference(llama: LlamaForCausalLM, ids: list[int]) -> Tensor:
    return llama(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_equal_transformers(shape: dict[str, object], tmp_path: Path) -> None:
    llama = random_llama(**shape)
    decoder = same_decoder(llama, tmp_path)
    ids = ids_of(23)
    [ours] = Requests(decoder, 1, page=4).prompt([ids])
    torch.testing.assert_close(ours, reference(llama, ids), **TOLERANCE)


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_a_ragged_batch_in_chunks_equals_whole_prompts(page: int, chunk: int, tmp_path: Path) -> None:
    llama = random_llama()
    prompts = [ids_of(19, 2), ids_of(7, 3), ids_of(33, 4)]
    requests = Requests(same_decoder(llama, tmp_path), 3, page)
    ours: list[list[Tensor]] = [[], [], []]
    for start in range(0, 33, chunk):
        for b, logits in enumerate(requests.prompt([p[start : start + chunk] for p in prompts])):
            ours[b].append(logits)
    for prompt, chunks in zip(prompts, ours, strict=True):
        torch.testing.assert_close(torch.cat(chunks), reference(llama, prompt), **TOLERANCE)


@pytest.mark.parametrize("page", [1, 4, 16])
def test_one_row_at_a_time_equals_whole_prompts(page: int, tmp_path: Path) -> None:
    llama = random_llama()
    sequences = [ids_of(14, 5), ids_of(9, 6)]
    starts = [8, 3]
    requests = Requests(same_decoder(llama, tmp_path), 2, page)
    requests.prompt([s[:n] for s, n in zip(sequences, starts, strict=True)])
    for step in range(6):
        tokens = torch.tensor([[s[n + step]] for s, n in zip(sequences, starts, strict=True)])
        logits = requests.tree(tokens, torch.zeros(2, 1, dtype=torch.long), mask=None)[:, 0]
        for b, (sequence, start) in enumerate(zip(sequences, starts, strict=True)):
            expected = reference(llama, sequence[: start + step + 1])[-1]
            torch.testing.assert_close(logits[b], expected, **TOLERANCE)
        requests.lens = [n + 1 for n in requests.lens]


def test_a_chain_without_a_mask_is_causal(tmp_path: Path) -> None:
    llama = random_llama()
    ids = ids_of(15)
    requests = Requests(same_decoder(llama, tmp_path), 1, page=4)
    requests.prompt([ids[:10]])
    logits = requests.tree(torch.tensor([ids[10:]]), torch.arange(5)[None], mask=None)
    torch.testing.assert_close(logits[0], reference(llama, ids)[10:], **TOLERANCE)


def test_every_path_of_a_tree_equals_a_plain_forward(tmp_path: Path) -> None:
    parents = [[-1, 0, 0, 1, 2, 2, 4], [-1, 0, 1, 2, 3, 0, 0]]
    prompts = [ids_of(9, 7), ids_of(4, 8)]
    llama = random_llama()
    requests = Requests(same_decoder(llama, tmp_path), 2, page=4)
    requests.prompt(prompts)
    tokens = torch.tensor([ids_of(7, 9), ids_of(7, 10)])
    paths, depth, mask = drawn(parents)
    logits = requests.tree(tokens, depth, mask)
    for b, prompt in enumerate(prompts):
        for node, path in enumerate(paths[b]):
            expected = reference(llama, prompt + tokens[b, path].tolist())[-1]
            torch.testing.assert_close(logits[b, node], expected, **TOLERANCE)


def test_the_callback_sees_the_output_of_every_layer(tmp_path: Path) -> None:
    llama = random_llama(num_hidden_layers=3)
    ids = ids_of(11)
    seen: dict[int, Tensor] = {}

    def on_layer(i: int, hidden: Tensor, residual: Tensor | None) -> None:
        assert i not in seen
        seen[i] = hidden if residual is None else hidden + residual

    Requests(same_decoder(llama, tmp_path), 1, page=4).prompt([ids], on_layer)
    raw: dict[int, Tensor] = {}  # the last of transformers' hidden states is normed, so layers are watched too
    for i, layer in enumerate(llama.model.layers):
        layer.register_forward_hook(lambda _m, _a, out, i=i: raw.__setitem__(i, out))
    expected = llama(torch.tensor([ids]), output_hidden_states=True).hidden_states
    assert list(seen) == [0, 1, 2, -1]
    for i in range(2):
        torch.testing.assert_close(seen[i], expected[i + 1][0], **TOLERANCE)
    torch.testing.assert_close(seen[2], raw[2].view(11, 32), **TOLERANCE)
    torch.testing.assert_close(seen[-1], expected[3][0], **TOLERANCE)


ROPE = {"rope_type": "linear", "factor": 2.0}


def inline(**changes: object) -> Architecture:
    facts: dict[str, object] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 61,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    return Architecture(**facts | changes)  # type: ignore[arg-type]


def test_inline_facts_equal_those_of_a_config_json(tmp_path: Path) -> None:
    random_llama(rope_parameters={"rope_theta": 500.0, **ROPE}).save_pretrained(tmp_path)
    ours, theirs = ModelFacts.from_architecture(inline()), ModelFacts.from_hf(tmp_path)
    assert ours.differences(theirs) == []
    assert (ours.head_dim, ours.kv_heads, ours.rope.scaling) == (8, 2, ROPE)


def test_flags_of_transformers_own_forward_change_nothing() -> None:
    plain = LlamaConfig(architectures=["LlamaForCausalLM"])
    flagged = LlamaConfig(
        architectures=["LlamaForCausalLM"], output_hidden_states=True, output_attentions=True, use_cache=False
    )
    assert ModelFacts.from_hf(flagged) == ModelFacts.from_hf(plain)


def test_differences_are_told_by_config_key() -> None:
    ours = ModelFacts.from_architecture(inline())
    theirs = ModelFacts.from_architecture(inline(num_hidden_layers=3, num_key_value_heads=None))
    assert ours.differences(theirs) == [
        "num_hidden_layers: 2 here, 3 there",
        "num_key_value_heads: 2 here, 4 there",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["FooForCausalLM"]}, "FooForCausalLM.*known: LlamaForCausalLM"),
        ({"architectures": None}, r"\(none named\)"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
    ],
)
def test_what_a_config_asks_beyond_us_is_refused(changes: dict[str, object], message: str) -> None:
    config = LlamaConfig(**{"architectures": ["LlamaForCausalLM"]} | changes)
    with pytest.raises(UnsupportedError, match=message):
        ModelFacts.from_hf(config)


def test_config_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"no config\.json"):
        ModelFacts.from_hf(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightError, match=r"config\.json cannot be read"):
        ModelFacts.from_hf(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nosuch", "architectures": ["NoSuch"]}')
    with pytest.raises(UnsupportedError, match="nosuch"):
        ModelFacts.from_hf(tmp_path)


def test_more_than_one_rank_is_refused() -> None:
    facts = ModelFacts.from_architecture(inline())
    with pytest.raises(UnsupportedError, match="tensor parallel"):
        Decoder(facts, max_positions=8, max_seq_len=8, dtype=torch.float32, device=CPU, tp=TP(0, 2))


def test_the_support_table_knows_the_families() -> None:
    assert set(TARGETS) == set(FAMILIES)
