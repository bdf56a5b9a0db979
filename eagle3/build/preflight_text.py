"""Whether a head that ships a tokenizer was made for the target's."""

from functools import partial
from pathlib import Path

from eagle3.errors import Problem
from eagle3.models.faults import Faults
from eagle3.text.tokenizer import TOKENIZER_FILES, Tokenizer

TEXTS = (
    "Hello, world! It is 12:45, the 3rd of May 2024.",
    "def add(x):\n    return x + 1  # one more\n",
    "Übung macht den Meister; 你好，世界; Привет, мир",
)
_KEY = "draft.checkpoint"


def compare_tokenizers(ours: Tokenizer, head: Path) -> tuple[list[Problem], list[Problem]]:
    """Of a head against its target's: problems and warnings. Other ids of texts are wrong, others may be."""
    if not any((head / name).is_file() for name in TOKENIZER_FILES) or _same_files(ours.folder, head):
        return [], []
    of_head = Faults(_KEY, str(head))
    theirs = of_head.attempt(partial(Tokenizer.find, head), None)
    if theirs is None:
        return [], of_head.problems()
    for text in TEXTS:
        own, wanted = (tokenizer.encode(text, add_special_tokens=False) for tokenizer in (theirs, ours))
        if own != wanted:
            told = f"{text[:20]!r}… is {_few(own)} to the one it ships and {_few(wanted)} to the target's"
            remedy = "choose the head of this target, or remove the tokenizer from its folder if that is a mistake"
            return [Problem(_KEY, f"is of another tokenizer: {told}: {remedy}", str(head))], []
    pairs = {
        "size": (theirs.vocab_size, ours.vocab_size),
        "bos": (theirs.bos_id, ours.bos_id),
        "eos": (theirs.eos_ids, ours.eos_ids),
    }
    lines = [f"{name} is {own}, the target's {wanted}" for name, (own, wanted) in pairs.items() if own != wanted]
    if not lines:
        return [], []
    return [], [Problem(_KEY, f"the tokenizer that it ships is not the target's: {'; '.join(lines)}", str(head))]


def _few(ids: list[int]) -> str:
    return f"[{', '.join(map(str, ids[:6]))}{', …' if len(ids) > 6 else ''}]"


def _same_files(one: Path, other: Path) -> bool:
    files = [folder / TOKENIZER_FILES[0] for folder in (one, other)]
    return all(file.is_file() for file in files) and files[0].read_bytes() == files[1].read_bytes()
