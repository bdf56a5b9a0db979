import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hf_llama import decoder_of, random_llama
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from eagle3.errors import WeightError
from eagle3.models.decoder import Decoder
from eagle3.models.weights import dummy_weights, load_weights, plan

Q = "model.layers.1.self_attn.q_proj.weight"
K = "model.layers.1.self_attn.k_proj.weight"
UP = "model.layers.0.mlp.up_proj.weight"
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    return random_llama(attention_bias=True)


@pytest.fixture(scope="module")
def decoder(llama: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("llama")
    llama.save_pretrained(folder)
    return decoder_of(folder)


def load(model: Decoder, folder: Path) -> None:
    load_weights(model, folder, model.facts.family.names, tied=model.facts.tied_names)


def wiped(model: Decoder) -> Decoder:
    for value in model.parameters():
        value.fill_(torch.nan)
    return model


def assert_same(model: Decoder, llama: LlamaForCausalLM) -> None:
    theirs = llama.state_dict()
    parts = plan(model, model.facts.family.names)
    assert parts.keys() == theirs.keys()
    for name, part in parts.items():
        assert torch.equal(part.into, theirs[name].to(part.into.dtype)), name


def _single(llama: LlamaForCausalLM, folder: Path) -> None:
    llama.save_pretrained(folder)


def _sharded(llama: LlamaForCausalLM, folder: Path) -> None:
    llama.save_pretrained(folder, max_shard_size="30KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2


def _bin(llama: LlamaForCausalLM, folder: Path) -> None:
    torch.save(llama.state_dict(), folder / "pytorch_model.bin")


def _legacy_bin(llama: LlamaForCausalLM, folder: Path) -> None:
    torch.save(llama.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def _sharded_bin(llama: LlamaForCausalLM, folder: Path) -> None:
    state = list(llama.state_dict().items())
    weight_map = {}
    for i, start in enumerate(range(0, len(state), 9)):
        name = f"pytorch_model-{i}.bin"
        torch.save(dict(state[start : start + 9]), folder / name)
        weight_map |= dict.fromkeys(dict(state[start : start + 9]), name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("save", [_single, _sharded, _bin, _legacy_bin, _sharded_bin])
def test_every_format_fills_every_tensor(
    save: Callable[[LlamaForCausalLM, Path], None], llama: LlamaForCausalLM, decoder: Decoder, tmp_path: Path
) -> None:
    save(llama, tmp_path)
    load(wiped(decoder), tmp_path)
    assert_same(decoder, llama)


def test_the_report_names_each_tensor_and_its_file_and_progress_ends_at_the_total(
    llama: LlamaForCausalLM, decoder: Decoder, tmp_path: Path
) -> None:
    llama.save_pretrained(tmp_path)
    told: list[tuple[int, int]] = []
    names = decoder.facts.family.names
    report = load_weights(decoder, tmp_path, names, progress=lambda done, total: told.append((done, total)))
    assert ("layers.1.attn.qkv.weight", f"model.safetensors: {K}") in report.loaded
    assert len(report.loaded) == len(told) == len(llama.state_dict())
    size = sum(p.nbytes for p in decoder.parameters())
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (size, size)


def test_values_are_cast_to_the_models_type(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    assert_same(decoder_of(tmp_path, dtype=torch.bfloat16), llama)


@pytest.mark.parametrize(("value", "dtype"), [(torch.nan, None), (-torch.inf, None), (1e6, torch.float16)])
def test_what_is_no_number_is_told(
    llama: LlamaForCausalLM, tmp_path: Path, value: float, dtype: torch.dtype | None
) -> None:
    llama.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    for name in (K, UP):
        state[name].view(-1)[5] = value
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(WeightError, match="holds what is no number") as error:
        decoder_of(tmp_path, **({"dtype": dtype} if dtype else {}))
    assert all(f"model.safetensors: {name} holds NaN or infinity" in str(error.value) for name in (K, UP))


def test_rotary_tables_of_older_checkpoints_are_passed_over(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    old = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file(load_file(tmp_path / "model.safetensors") | {old: torch.ones(4)}, tmp_path / "model.safetensors")
    model = decoder_of(tmp_path)
    report = load_weights(model, tmp_path, model.facts.family.names)
    assert report.ignored == (old,)


def test_other_names_by_rename(llama: LlamaForCausalLM, decoder: Decoder, tmp_path: Path) -> None:
    state = {f"wrapped.{name}": value for name, value in llama.state_dict().items()}
    save_file(state | {"trainer.step": torch.zeros(1)}, tmp_path / "model.safetensors")

    def rename(name: str) -> str | None:
        return name.removeprefix("wrapped.") if name.startswith("wrapped.") else None

    load_weights(wiped(decoder), tmp_path, decoder.facts.family.names, rename=rename)
    assert_same(decoder, llama)


class TestTied:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        random_llama(tie_word_embeddings=True).save_pretrained(tmp_path)
        return tmp_path

    def rewrite(self, folder: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
        state = load_file(folder / "model.safetensors")
        edit(state)
        save_file(state, folder / "model.safetensors")

    def test_an_equal_copy_is_accepted(self, folder: Path) -> None:
        self.rewrite(folder, lambda state: state.update({HEAD: state[EMBED].clone()}))
        model = decoder_of(folder)
        assert model.lm_head is None
        assert torch.equal(model.logits(torch.eye(32).double()), model.embed.weight.T)

    def test_a_copy_alone_stands_in(self, folder: Path) -> None:
        before = decoder_of(folder).embed.weight
        self.rewrite(folder, lambda state: state.update({HEAD: state.pop(EMBED)}))
        assert torch.equal(decoder_of(folder).embed.weight, before)

    def test_a_copy_that_differs_is_refused(self, folder: Path) -> None:
        self.rewrite(folder, lambda state: state.update({HEAD: state[EMBED] + 1}))
        with pytest.raises(WeightError, match=r"ties lm_head\.weight to model\.embed_tokens\.weight"):
            decoder_of(folder)


def _edit(**changes: Tensor | None) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        state = load_file(folder / "model.safetensors") | changes
        save_file({n: t for n, t in state.items() if t is not None}, folder / "model.safetensors")

    return apply


def _shard(folder: Path) -> Path:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    first = dict(list(state.items())[:10])
    save_file(first, folder / "a.safetensors")
    save_file({n: t for n, t in state.items() if n not in first}, folder / "b.safetensors")
    places = {name: "a.safetensors" if name in first else "b.safetensors" for name in state}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder / "model.safetensors.index.json"


def _replace_index(text: str) -> Callable[[Path], None]:
    return lambda folder: (_shard(folder).write_text(text), None)[1]


def _lost_shard(folder: Path) -> None:
    _shard(folder)
    (folder / "b.safetensors").unlink()


def _in_two_shards(folder: Path) -> None:
    _shard(folder)
    both = load_file(folder / "a.safetensors") | load_file(folder / "b.safetensors")
    save_file(
        {n: both[n] for n in both if n == Q or n in load_file(folder / "a.safetensors")},
        folder / "a.safetensors",
    )
    save_file(
        {n: both[n] for n in both if n == Q or n in load_file(folder / "b.safetensors")},
        folder / "b.safetensors",
    )


def _index_lies(folder: Path) -> None:
    index = _shard(folder)
    places = json.loads(index.read_text())["weight_map"] | {"model.layers.9.x": "a.safetensors"}
    index.write_text(json.dumps({"weight_map": places}))


def _cut(name: str, size: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        if name.endswith(".bin"):
            torch.save(load_file(folder / "model.safetensors"), folder / name)
            (folder / "model.safetensors").unlink()
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:size])

    return apply


def _as_bin(content: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(content, folder / "pytorch_model.bin")

    return apply


class Unsafe:
    pass


BROKEN = {
    "a tensor is missing": (
        _edit(**{"model.norm.weight": None}),
        [r"missing: model\.norm\.weight \(for norm"],
    ),
    "a fused slice is missing": (_edit(**{K: None}), [rf"missing: {K} \(for layers\.1\.attn\.qkv\.weight\)"]),
    "a bias is missing": (_edit(**{K[:-6] + "bias": None}), [r"missing: .*k_proj\.bias"]),
    "a tensor too many": (_edit(extra=torch.zeros(3)), [r"left over: extra \[3\]"]),
    "a shape differs": (_edit(**{UP: torch.zeros(47, 32)}), [r"up_proj\.weight is \[47, 32\].*\[48, 32\]"]),
    "a number of axes differs": (_edit(**{UP: torch.zeros(48 * 32)}), [r"is \[1536\]"]),
    "integers for floats": (
        _edit(**{UP: torch.zeros(48, 32, dtype=torch.int8)}),
        [r"type: .*up_proj.* is I8"],
    ),
    "all faults at once": (
        _edit(**{Q: None, UP: torch.zeros(1, 1), "extra": torch.zeros(3)}),
        [rf"missing: {Q}", r"is \[1, 1\]", "left over: extra"],
    ),
    "no files": (
        lambda folder: (folder / "model.safetensors").unlink(),
        ["has no weights", "pytorch_model.bin"],
    ),
    "data cut short": (_cut("model.safetensors", 20_000), [r"model\.safetensors cannot be read"]),
    "header cut short": (_cut("model.safetensors", 100), [r"model\.safetensors cannot be read"]),
    "empty file": (_cut("model.safetensors", 0), [r"model\.safetensors cannot be read"]),
    "bin cut short": (_cut("pytorch_model.bin", 20_000), [r"pytorch_model\.bin cannot be read"]),
    "empty bin": (_cut("pytorch_model.bin", 0), [r"pytorch_model\.bin cannot be read"]),
    "bin with code": (_as_bin({Q: Unsafe()}), [r"pytorch_model\.bin cannot be read"]),
    "bin with more than tensors": (_as_bin({"step": 3}), ["more than a flat table"]),
    "a shard is not there": (_lost_shard, [r"files that are not there: b\.safetensors"]),
    "index is no JSON": (_replace_index("{"), ["is not an index"]),
    "index has no map": (_replace_index("{}"), ["is not an index.*weight_map"]),
    "index maps to no names": (_replace_index('{"weight_map": {"a": 3}}'), ["is not an index"]),
    "index leads outside": (
        _replace_index('{"weight_map": {"a": "../x.safetensors"}}'),
        ["outside its folder"],
    ),
    "index names what a shard lacks": (_index_lies, [r"lacks: model\.layers\.9\.x"]),
    "a tensor comes twice": (_in_two_shards, [rf"{Q}: in a\.safetensors and again in b\.safetensors"]),
}


@pytest.mark.parametrize(("damage", "messages"), BROKEN.values(), ids=BROKEN)
def test_a_broken_checkpoint_is_one_clear_error(
    damage: Callable[[Path], None],
    messages: list[str],
    llama: LlamaForCausalLM,
    decoder: Decoder,
    tmp_path: Path,
) -> None:
    llama.save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(WeightError) as caught:
        load(decoder, tmp_path)
    for message in messages:
        assert caught.match(message)


def test_dummy_weights_are_the_same_for_a_seed_and_of_the_right_scale(decoder: Decoder) -> None:
    def filled(seed: int) -> dict[str, Tensor]:
        dummy_weights(wiped(decoder), seed=seed, std=0.05)
        return {name: value.clone() for name, value in decoder.state_dict().items()}

    first, again, other = filled(3), filled(3), filled(4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embed.weight"], other["embed.weight"])
    assert first["layers.0.attn_norm.weight"].eq(1).all()
    assert first["layers.0.attn.qkv.bias"].eq(0).all()
    assert first["layers.0.mlp.gate_up.weight"].std().item() == pytest.approx(0.05, rel=0.1)
    assert not torch.equal(first["layers.0.attn.o.weight"], first["layers.1.attn.o.weight"])
