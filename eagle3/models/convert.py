"""A GGUF file becomes an ordinary folder: bfloat16 safetensors, config.json, tokenizer and chat template."""

import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3.errors import UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CONTROL = 3  # the token type of GGUF that marks <|im_start|> and its like
USER_DEFINED = 4
# how each pre-tokenizer of GGUF splits before bytes are merged: are digits taken one by one?
SINGLE_DIGITS = {"smollm": True, "gpt-2": False}


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Fill `folder` with the dequantised model of `gguf`. Weights go through transformers' own loader.

    Tokens are taken from the file itself, because transformers' reading of a GGUF tokenizer differs between
    its versions. Raises UnsupportedError for a tokenizer not known here.
    """
    import torch
    import transformers

    fields = read_fields(gguf)  # before the weights: cheap, and refuses what is not known
    tokenizer = build_tokenizer(fields)
    # newer transformers keep the blocks packed unless told otherwise; older ones always unpack
    packing = getattr(transformers, "GgufConfig", None)
    options = {} if packing is None else {"quantization_config": packing(dequantize=True)}
    with _silent():
        try:
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, local_files_only=True, **options
            )
        except ValueError as fault:
            raise UnsupportedError(f"{gguf.name}: transformers cannot load it: {fault}") from fault
        model.hf_quantizer = None  # it is plain now, and a quantised model refuses to be saved
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        for config in (model.config, model.generation_config):
            config.bos_token_id = fields.get("tokenizer.ggml.bos_token_id")
            config.eos_token_id = _end_ids(fields)
            config.pad_token_id = fields.get("tokenizer.ggml.padding_token_id")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def read_fields(gguf: Path) -> dict[str, Any]:
    """The metadata of a GGUF file by key, as Python values."""
    import gguf as library

    kinds = library.GGUFValueType

    reader = library.GGUFReader(gguf)
    fields: dict[str, Any] = {}
    for key, field in reader.fields.items():
        parts = [field.parts[i] for i in field.data]
        text = bool(field.types) and field.types[-1] == kinds.STRING
        values = [bytes(part).decode() if text else part[0].item() for part in parts]
        if field.types and field.types[0] == kinds.ARRAY:
            fields[key] = values
        elif values:
            fields[key] = values[0]
    return fields


def build_tokenizer(fields: Mapping[str, Any]) -> "PreTrainedTokenizerFast":
    """The byte-level BPE tokenizer that the metadata of a GGUF file describe, as a transformers tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ggml: dict[str, Any] = {key.removeprefix("tokenizer.ggml."): value for key, value in fields.items()}
    kind, pre = ggml.get("model"), ggml.get("pre", "unnamed")
    if kind != "gpt2" or pre not in SINGLE_DIGITS:
        raise UnsupportedError(
            f"GGUF tokenizer {kind!r} with pre-tokenizer {pre!r}: known are 'gpt2' with "
            f"{' or '.join(map(repr, SINGLE_DIGITS))}; convert the file yourself and name its folder"
        )
    tokens: list[str] = ggml["tokens"]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in ggml["merges"])]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    split = pre_tokenizers.ByteLevel(add_prefix_space=ggml.get("add_space_prefix", False))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if SINGLE_DIGITS[pre] else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*digits, split])
    backend.decoder = decoders.ByteLevel()
    for token, role in zip(tokens, ggml["token_type"], strict=True):
        if role in (CONTROL, USER_DEFINED):
            backend.add_tokens([AddedToken(token, special=role == CONTROL, normalized=False)])
    if ggml.get("add_bos_token"):
        bos = (tokens[ggml["bos_token_id"]], ggml["bos_token_id"])
        backend.post_processor = processors.TemplateProcessing(f"{bos[0]} $A", special_tokens=[bos])
    names = {
        "bos": "bos_token_id",
        "eos": "eos_token_id",
        "unk": "unknown_token_id",
        "pad": "padding_token_id",
    }
    special = {f"{name}_token": tokens[ggml[key]] for name, key in names.items() if key in ggml}
    make: Any = PreTrainedTokenizerFast  # untyped
    tokenizer: PreTrainedTokenizerFast = make(tokenizer_object=backend, clean_up_tokenization_spaces=False, **special)
    tokenizer.chat_template = ggml.get("tokenizer.chat_template")
    return tokenizer


def _end_ids(fields: Mapping[str, Any]) -> int | list[int] | None:
    """The token that ends a text and the one that ends a turn, where a file names both."""
    named = (fields.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot"))
    ids = sorted({token for token in named if token is not None})
    return (ids[0] if len(ids) == 1 else ids) if ids else None


@contextmanager
def _silent() -> Iterator[None]:
    """Hold back the bars and warnings of transformers, which speak of steps nobody asked about."""
    from transformers import utils

    logging: Any = utils.logging  # untyped
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # its GGUF reader draws bars of its own on whatever sys.stderr is
        with redirect_stderr(io.StringIO() if sys.stderr else None):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
