"""Tiny tokenizers of the two great kinds, trained on the spot."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from eagle3.text.tokenizer import Tokenizer

SENTENCES = [
    "the cat sat on the mat and the dog lay on the log",
    "for i in range(10):\n    print(i)",
    "你好 世界",
] * 4
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "[{{ m['role'] }}]{{ m['content'] }}"
    "{% if not loop.last or add_generation_prompt %}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def byte_level() -> Backend:
    """As GPT-2 and Llama 3: bytes as letters, merged."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>", "<unk>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    return backend


def byte_fallback() -> Backend:
    """As Llama 2 and Vicuna: pieces with ▁ for a space, single bytes for what is unknown."""
    pieces = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted(set("▁abcdefghijklmnopqrstuvwxyz世") | {"▁t", "▁th", "▁the"})
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    vocab = {piece: i for i, piece in enumerate([*pieces, *letters])}
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


KINDS: dict[str, Callable[[], Backend]] = {"bytes": byte_level, "fallback": byte_fallback}
Make = Callable[..., Tokenizer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(kind, template=…, bos=…): a tokenizer read back from its files."""

    def made(kind: str = "bytes", *, template: str | None = TEMPLATE, bos: bool = True) -> Tokenizer:
        backend = KINDS[kind]()
        if bos:
            backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
        fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        fast.chat_template = template
        fast.save_pretrained(tmp_path)
        return Tokenizer(tmp_path)

    return made
