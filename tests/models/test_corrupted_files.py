"""Corrupted files of either model: one clear error each that names the file, whether they are looked at or loaded.

What is beside the point of a checkpoint (a tensor missing, left over, or of another shape) is in test_weights and
test_head_files.
"""

import pickle
import resource
import shutil
from pathlib import Path

import pytest
import torch

from eagle3.build.engine import build_engine
from eagle3.build.folders import at_hand
from eagle3.build.preflight import preflight
from eagle3.config.load import Composed
from eagle3.errors import ConfigError, UnsupportedError, WeightError
from helpers.changed import changed
from helpers.cycle_files import V, write_cycle
from helpers.damage import (
    BIN,
    CONFIG,
    HUGE,
    INDEX,
    SAFE,
    Damage,
    as_bin,
    bomb,
    code,
    cut,
    header,
    index,
    loop,
    no_file,
    pickled,
    put,
    raw_header,
    said,
    say,
    squeezed,
    tensors,
    text,
)

PAIR = (
    *("conf=base", "target.checkpoint=./target", "draft=eagle3", "draft.checkpoint=./head"),
    *("spec=chain", "spec.max_draft_len=3"),
    *("runtime.max_seq_len=100", "runtime.max_batch_size=2", "runtime.device=cpu", "kv.max_tokens=512"),
)
TOKENS, ENDS = "tokenizer.json", "generation_config.json"
DEEP = "[" * 100_000 + "]" * 100_000
EMBED, NORM = "model.embed_tokens.weight", "model.norm.weight"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_cycle(folder, tokenizer=True)
    build_engine(composed(folder))  # what is imported first takes memory
    return folder


@pytest.fixture
def pair(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "pair"))


def composed(pair: Path) -> Composed:
    given = {"target__checkpoint": str(pair / "target"), "draft__checkpoint": str(pair / "head")}
    return changed(PAIR, **given)


# name -> whose files, what is done to them, what is told; errors name the file, or the folder where it is not there
FILES: dict[str, tuple[str, Damage, str]] = {
    "header length huge": ("target", raw_header(b"{}", 2**63), SAFE),
    "header length zero": ("target", raw_header(b"", 0), SAFE),
    "header beyond the file": ("head", raw_header(b"{}", 4096), SAFE),
    "header is no JSON": ("head", raw_header(b"{'a': 1}"), SAFE),
    "header is a list": ("target", raw_header(b"[1, 2]"), SAFE),
    "header is no UTF-8": ("target", raw_header(b'{"\xff": 1}'), SAFE),
    "header is deep": ("target", raw_header(DEEP.encode()), SAFE),
    "header of nothing": ("head", raw_header(b"{}"), f"{SAFE}|lacks fc"),
    "offsets overlap": ("target", header(lambda t, n: t.update(more=t[n])), SAFE),
    "offsets out of range": ("head", said(data_offsets=[0, 1 << 40]), SAFE),
    "offsets backwards": ("target", said(data_offsets=[64, 0]), SAFE),
    "offsets negative": ("head", said(data_offsets=[-8, 8]), SAFE),
    "a type of no one": ("target", said(dtype="F13"), SAFE),
    "a type of another width": ("head", said(dtype="F16"), SAFE),
    "a shape of another size": ("target", said(shape=[3, 5]), SAFE),
    "a shape below zero": ("head", said(shape=[-1, -4096]), SAFE),
    "a shape that overflows": ("target", said(shape=[1 << 40, 1 << 40]), SAFE),
    "the last byte is gone": ("head", cut(SAFE, lambda size: size - 1), SAFE),
    "a byte too many": ("target", lambda f: (f / SAFE).open("ab").write(b"x"), SAFE),
    "half of the header": ("head", cut(SAFE, lambda _: 40), SAFE),
    "seven bytes": ("target", cut(SAFE, lambda _: 7), SAFE),
    "a folder of weights": ("target", no_file(SAFE), "has no weights|cannot be read"),
    "a link to itself": ("head", loop(SAFE), "has no weights|cannot be read"),
    "NaN": ("target", tensors(lambda t: t[EMBED].view(-1)[7].fill_(torch.nan)), f"(?s)no number.*{EMBED}"),
    "infinity": ("head", tensors(lambda t: t["fc.weight"].view(-1)[7].fill_(-torch.inf)), "(?s)no number.*fc.weight"),
    "too large for its type": ("target", tensors(lambda t: t[NORM].fill_(1e300)), f"(?s)no number.*{NORM}"),
    "float8": ("head", tensors(lambda t: t.update({"fc.weight": t["fc.weight"].to(torch.float8_e5m2)})), "fc.weight"),
    "a number for a norm": ("target", tensors(put(NORM, torch.tensor(1.0))), rf"{NORM} is \[\]"),
    "no elements": ("head", tensors(put("fc.weight", torch.zeros(0, 0))), "fc.weight"),
    "a d2t of wild numbers": ("head", tensors(put("d2t", torch.full((V,), 2**62))), "d2t"),
    "config is empty": ("target", text(CONFIG, ""), CONFIG),
    "config is a list": ("target", text(CONFIG, "[1]"), CONFIG),
    "config is null": ("head", text(CONFIG, "null"), CONFIG),
    "config is no UTF-8": ("target", text(CONFIG, b'{"model_type": "\xff\xfe"}'), CONFIG),
    "config is no UTF-8, of a head": ("head", text(CONFIG, b'{"a": "\xff\xfe"}'), CONFIG),
    "config is deep": ("target", text(CONFIG, '{"a": ' + DEEP + "}"), CONFIG),
    "config is deep, of a head": ("head", text(CONFIG, '{"a": ' + DEEP + "}"), CONFIG),
    "config is a folder": ("target", no_file(CONFIG), CONFIG),
    "config is a link to itself": ("head", loop(CONFIG), CONFIG),
    "a key twice": ("target", text(CONFIG, '{"model_type": "llama", "model_type": "x9"}'), "model_type twice"),
    "a key twice, of a head": ("head", text(CONFIG, '{"a": 1, "a": 2}'), "says a twice"),
    "hidden size absurd": ("target", say(hidden_size=10**12, head_dim=16), "hidden_size is 1000000000000"),
    "hidden size beyond all integers": ("target", say(hidden_size=10**30, head_dim=16), "hidden_size"),
    "layers absurd": ("target", say(num_hidden_layers=10**12), "num_hidden_layers"),
    "layers below zero": ("target", say(num_hidden_layers=-1), "num_hidden_layers"),
    "vocabulary below zero": ("target", say(vocab_size=-64), "vocab_size"),
    "vocabulary absurd": ("target", say(vocab_size=10**15), "vocab_size"),
    "intermediate size zero": ("target", say(intermediate_size=0), "intermediate_size"),
    "a type that is none": ("target", say(dtype="float9"), "dtype is 'float9'"),
    "a type that is none, by its older name": ("target", say(dtype=None, torch_dtype=["float16"]), "torch_dtype is"),
    "a type of integers": ("target", say(dtype="int9"), "dtype is 'int9', must be a type of torch's"),
    "no heads": ("target", say(num_attention_heads=0), "num_attention_heads|config.json"),
    "a size in words": ("target", say(hidden_size="wide"), CONFIG),
    "a size with a fraction": ("target", say(intermediate_size=127.5), f"intermediate_size|{CONFIG}"),
    "a size that is null": ("target", say(num_hidden_layers=None), f"num_hidden_layers|{CONFIG}"),
    "eps of nothing": ("target", say(rms_norm_eps=float("nan")), "rms_norm_eps"),
    "architectures by name": ("target", say(architectures={"a": 1}), "architecture|config.json"),
    "theta of nothing": ("target", say(rope_theta=float("nan"), rope_parameters=None), "rope_theta"),
    "theta of nothing, of a head": ("head", say(rope_theta=float("nan")), "rope_theta"),
    "theta without an end": ("head", say(rope_theta=float("inf")), "rope_theta"),
    "theta beyond floats": ("head", say(rope_theta=10**400), "rope_theta"),
    "scaling of a list": ("head", say(rope_scaling={"rope_type": ["yarn"]}), "yarn"),
    "head sizes absurd": ("head", say(hidden_size=10**12), "hidden_size is 1000000000000"),
    "head sizes negative": ("head", say(num_attention_heads=-4), "num_attention_heads is -4"),
    "layers by words": ("head", say(eagle_aux_hidden_state_layer_ids=["x"]), "list of integers"),
    "layers that are not there": ("head", say(eagle_aux_hidden_state_layer_ids=[1, 2, 10**20]), "outside"),
    "index leads to etc": ("target", index({"a": "../../etc/passwd"}), f"{INDEX} names files outside"),
    "index leads to the root": ("head", index({"a": "/etc/passwd"}), f"{INDEX} names files outside"),
    "index names the folder": ("target", index({"a": "."}), INDEX),
    "index names nothing": ("target", index({"a": ""}), INDEX),
    "index names a strange file": ("head", index({"a": "a\0b"}), INDEX),
    "index names what is no weights": ("target", index({"a": CONFIG}), "config.json cannot be read"),
    "index is deep": ("target", index(DEEP), INDEX),
    "index of no map": ("head", index({"a": ["a.safetensors"]}), INDEX),
    "index of nothing": ("target", index({}), "missing|no weights|index"),
    "tokenizer is no JSON": ("target", text(TOKENS, "{"), "tokenizer"),
    "tokenizer is a list": ("target", text(TOKENS, "[]"), "tokenizer"),
    "tokenizer is deep": ("target", text(TOKENS, DEEP), "tokenizer"),
    "tokenizer is no UTF-8": ("target", text(TOKENS, b"\xff\xfe"), "tokenizer"),
    "tokenizer of no kind": ("target", text(TOKENS, '{"version": "1.0", "model": {"type": "X"}}'), "tokenizer"),
    "tokenizer's config is a list": ("target", text("tokenizer_config.json", "[]"), "tokenizer"),
    "tokenizer's config is deep": ("target", text("tokenizer_config.json", DEEP), "tokenizer"),
    "ends by words": ("target", text(ENDS, '{"eos_token_id": "x"}'), ENDS),
    "ends without an end": ("target", text(ENDS, '{"eos_token_id": Infinity}'), ENDS),
    "ends are deep": ("target", text(ENDS, DEEP), ENDS),
    "ends that no vocabulary has": ("target", text(ENDS, '{"eos_token_id": 1e30}'), "eos_token_id"),
    "bin of code": ("head", code("zip"), BIN),
    "bin of code, as of old": ("target", code("old"), BIN),
    "bin of code, bare": ("head", code("bare"), BIN),
    "bin of numbers": ("head", as_bin(lambda _: {"a": 3}), f"{BIN}.*flat table"),
    "bin of a list": ("target", pickled(pickle.dumps([1, 2], protocol=2)), f"{BIN}.*flat table"),
    "bin without names": ("head", as_bin(put(3, torch.ones(2))), BIN),
    "bin of thin tensors": ("head", as_bin(put("norm.weight", torch.ones(V).to_sparse())), BIN),
    "bin of tensors without data": ("target", as_bin(put(NORM, torch.ones(V, device="meta"))), BIN),
    "bin cut short": ("head", lambda f: (as_bin(len)(f), cut(BIN, lambda n: n // 2)(f)), BIN),
    "bin of old cut short": ("target", lambda f: (as_bin(len, False)(f), cut(BIN, lambda n: n // 2)(f)), BIN),
    "bin of random bytes": ("head", lambda f: ((f / SAFE).unlink(), text(BIN, bytes(range(256)))(f)), BIN),
    "bin of a broken zip": ("head", lambda f: ((f / SAFE).unlink(), text(BIN, b"PK\x03\x04" + bytes(99))(f)), BIN),
    "bin of a deep pickle": ("target", pickled(b"]" * 50_000 + b"a" * 49_999 + b"."), BIN),
    "bin that asks for all memory": ("head", pickled(b"cbuiltins\nbytearray\n(L1000000000000000L\ntR."), BIN),
    "bin that asks for more": ("head", pickled(b"cbuiltins\nbytearray\n(L1000000000000000000000L\ntR."), BIN),
    "bin packed anew": ("target", squeezed, f"{BIN}.*compressed"),
    "bomb for a pickle": ("head", bomb("data.pkl"), f"{BIN}.*compressed"),
    "bomb for a tensor": ("target", bomb("data/0"), f"{BIN}.*compressed"),
}


def test_the_pair_is_sound(pair: Path) -> None:
    made = composed(pair)
    assert preflight(made, at_hand(made.config)).problems == ()
    assert len(build_engine(made).generate([[1, 2]])[0].token_ids) > 1


@pytest.mark.parametrize("name", FILES)
def test_a_corrupted_file(name: str, pair: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whose, damage, wanted = FILES[name]
    damage(pair / whose)
    capfd.readouterr()
    made, before = composed(pair), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((ConfigError, WeightError, UnsupportedError), match=wanted) as raised:
        build_engine(made)
    message = str(raised.value)
    assert len(message.splitlines()) <= 24
    assert max(map(len, message.splitlines())) < 600
    if isinstance(raised.value, ConfigError):
        seen = raised.value.problems
        assert any(str(pair / whose) in (p.value, str(p.origin)[: -len(CONFIG) - 1]) for p in seen)
    else:
        assert str(pair / whose) in message
        preflight(made, at_hand(made.config))  # which raises nothing
    assert not (pair / whose / "executed").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < HUGE >> 13, "an eighth of a bomb, in KiB"
    assert "Traceback" not in "".join(capfd.readouterr())
