"""A checkpoint's tokenizer, read from its folder; no remote code is run."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from eagle3.config.files import read_json
from eagle3.errors import ConfigError, Problem, WeightError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
# what damaged files are seen to raise; nesting that is too deep is a RuntimeError
_UNREADABLE = (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError, RuntimeError)
NO_TOKENIZER = "give prompts as token ids with --prompt-ids"


class Tokenizer:
    """Text to ids and back, exactly as the checkpoint's own tokenizer does it."""

    def __init__(self, folder: Path) -> None:
        """Read the tokenizer in `folder`; WeightError where it has none or it cannot be read."""
        if not _has_tokenizer(folder):
            raise WeightError(f"{folder}: has no tokenizer ({TOKENIZER_FILES[0]} or such); {NO_TOKENIZER}")
        from transformers import AutoTokenizer

        self.folder = folder
        try:
            self.hf: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except _UNREADABLE as fault:
            reason = str(fault).strip().splitlines() or [type(fault).__name__]
            raise WeightError(f"{folder}: its tokenizer cannot be read: {reason[0]}; {NO_TOKENIZER}") from fault

    @classmethod
    def find(cls, folder: Path) -> "Tokenizer | None":
        """The tokenizer in `folder`, or None where there is none; one that cannot be read is an error."""
        return cls(folder) if _has_tokenizer(folder) else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`, with the BOS that the tokenizer adds by itself unless told not to."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as fault:
            raise ConfigError([Problem("prompt", f"is not proper text: {fault.reason}", repr(text[:60]))]) from fault
        ids = self.hf.encode(text, add_special_tokens=add_special_tokens)
        return [int(token) for token in ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`, spaces untouched."""
        text: str = self.hf.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def token(self, token_id: int) -> str:
        """One token as the vocabulary writes it ('' for an id that it does not have)."""
        return self.hf.convert_ids_to_tokens(token_id) or ""

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer knows, added ones included; a model's V may be larger."""
        return len(self.hf)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if there is one."""
        bos: int | None = self.hf.bos_token_id
        return bos

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that the tokenizer itself names as ends."""
        return _as_ids(self.hf.eos_token_id)

    @property
    def chat_template(self) -> str | None:
        """The template that turns messages into text, if there is one."""
        template = self.hf.chat_template
        if isinstance(template, dict):  # named templates
            template = template.get("default")
        return template if isinstance(template, str) else None

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that are not part of a text."""
        added = self.hf.added_tokens_decoder
        return frozenset(self.hf.all_special_ids) | {token for token, how in added.items() if how.special}


def end_token_ids(folder: Path, tokenizer: Tokenizer | None = None) -> tuple[int, ...]:
    """All tokens that end an answer: of generation_config.json, config.json and the tokenizer, in order."""
    ids = set(tokenizer.eos_ids if tokenizer else ())
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            config = read_json(path)
            inner = config.get("text_config") or {}
            ids |= {*_as_ids(config.get("eos_token_id")), *_as_ids(inner.get("eos_token_id"))}
        except (OSError, ValueError, AttributeError, TypeError) as fault:
            raise WeightError(f"{path}: not a configuration with proper eos_token_id: {fault}") from fault
    return tuple(sorted(ids))


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if wrong := [token for token in ids if type(token) is not int]:
        raise ValueError(f"{wrong[0]!r} is no token")
    return tuple(ids)


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)
