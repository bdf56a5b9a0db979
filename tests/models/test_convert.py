import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eagle3.errors import UnsupportedError
from eagle3.models.convert import build_tokenizer, convert_gguf, read_fields
from eagle3.text.tokenizer import Tokenizer, end_token_ids

H, FFN, LAYERS, HEADS, KV = 32, 64, 2, 4, 2
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def byte_alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "he", "ll", "hell", "12"]


def write_gguf(path: Path, *, pre: str = "smollm", eot: int | None = None, bos: bool = False) -> dict[str, Any]:
    """A tiny random Llama as GGUF; its tensors in the order and names of the file."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(H)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(H // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["h e", "l l", "he ll", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(bos)
    if eot is not None:
        writer.add_eot_token_id(eot)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)
    shapes = {"token_embd": (len(TOKENS), H), "output_norm": (H,)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{n}": (H,) for n in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{i}.attn_q": (H, H), f"blk.{i}.attn_output": (H, H)}
        shapes |= {f"blk.{i}.{n}": (H // HEADS * KV, H) for n in ("attn_k", "attn_v")}
        shapes |= {f"blk.{i}.{n}": (FFN, H) for n in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{i}.ffn_down": (H, FFN)}
    tensors = {f"{name}.weight": random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_gguf_becomes_an_ordinary_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tensors = write_gguf(tmp_path / "w.gguf", eot=0)
    convert_gguf(tmp_path / "w.gguf", tmp_path / "out")
    assert capfd.readouterr() == ("", "")

    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["dtype"] == "bfloat16"
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (HEADS, KV)
    assert end_token_ids(tmp_path / "out") == (0, 2)

    weights = load_file(tmp_path / "out/model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}
    assert len(weights) == len(tensors)
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    }.items():
        assert torch.equal(weights[ours], torch.from_numpy(tensors[theirs]).bfloat16()), ours

    tokenizer = Tokenizer(tmp_path / "out")
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.eos_ids == (2,)
    text = "hello 12 你好 ▁ <|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize(("pre", "pieces"), [("smollm", ["1", "2"]), ("gpt-2", ["12"])])
def test_digits_are_split_as_the_file_says(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    write_gguf(tmp_path / "w.gguf", pre=pre)
    assert build_tokenizer(read_fields(tmp_path / "w.gguf")).tokenize("12") == pieces


@pytest.mark.parametrize("bos", [False, True])
def test_a_bos_is_added_only_where_the_file_says(tmp_path: Path, bos: bool) -> None:
    write_gguf(tmp_path / "w.gguf", bos=bos)
    ids = build_tokenizer(read_fields(tmp_path / "w.gguf")).encode("hell")
    assert ids == [*([1] if bos else []), TOKENS.index("hell")]


def test_an_unknown_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "w.gguf", pre="other")
    with pytest.raises(UnsupportedError, match="pre-tokenizer 'other': known are 'gpt2' with 'smollm' or 'gpt-2'"):
        convert_gguf(tmp_path / "w.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
