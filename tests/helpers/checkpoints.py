"""Tiny checkpoints as files, made by transformers and tokenizers."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def write_target(folder: Path, *, vocab: int = 64, tokenizer: bool = False, seed: int = 0) -> Path:
    """A random Llama with large weights, so that no two logits are near each other; token 1 ends an answer."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    if tokenizer:
        write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """One token a printable ASCII letter or sign of a small set, with a chat template."""
    signs = ["<s>", "</s>", *" abcdefghijklmnopqrstuvwxyz.,!?<>0123456789ABCDEFGHIJ"]
    inner = Tokenizer(models.WordLevel({sign: i for i, sign in enumerate(signs)}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="?")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
