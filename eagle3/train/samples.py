"""Samples on disk: what a head is trained on, and the vocabulary that it drafts from.

A folder holds train.jsonl.gz, eval.jsonl.gz and meta.json. Lines of JSON can be read and cut with ordinary tools, token
ids shrink to a third under gzip, and any mix of lengths needs neither padding nor an index.
"""

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args
from zlib import error as ZlibError

import torch
from torch import Tensor

from eagle3.errors import ConfigError, Eagle3Error, Problem

Split = Literal["train", "eval"]
SPLITS: tuple[Split, ...] = get_args(Split)
META = "meta.json"


@dataclass(frozen=True)
class Sample:
    """Token ids, prompt and answers; `answers` are half-open spans of `ids` that the target wrote: loss mask 1."""

    ids: tuple[int, ...]
    answers: tuple[tuple[int, int], ...]

    @property
    def written(self) -> int:
        """Tokens at mask 1."""
        return sum(end - start for start, end in self.answers)


def split_file(folder: Path, split: Split) -> Path:
    """Where the samples of a split are."""
    return folder / f"{split}.jsonl.gz"


def read_meta(folder: Path) -> dict[str, Any]:
    """What is known of the samples in `folder`. Raises Eagle3Error where they are not there as a whole."""
    path = folder / META
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise Eagle3Error(f"{path}: {fault.strerror}; 'eagle3 data' makes such a folder, and ends with it") from fault
    except ValueError as fault:
        raise Eagle3Error(f"{path}: is not JSON: {fault}") from fault
    if not isinstance(meta, dict) or any(not isinstance(meta.get(split), dict) for split in SPLITS):
        raise Eagle3Error(f"{path}: wants an object with {' and '.join(SPLITS)}; run 'eagle3 data' again")
    return meta


def read_samples(folder: Path, split: Split) -> list[Sample]:
    """All samples of a split, in the order they were written.

    Raises Eagle3Error, with file and line, for what is broken, and where there are none or not as many as were written.
    """
    expected = read_meta(folder)[split].get("samples")
    path, samples = split_file(folder, split), []
    known: dict[int, int] = {}  # one object an id: a token then costs 8 bytes here, not 36
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for text in file:
                samples.append(_sample(text, known))
    except (OSError, EOFError, ZlibError, ValueError) as fault:
        reason = getattr(fault, "strerror", None)  # of the whole file, not of a line
        where = f"{path}" if reason else f"{path}:{len(samples) + 1}"
        raise Eagle3Error(f"{where}: cannot be read: {reason or fault}") from fault
    if len(samples) != expected:
        raise Eagle3Error(f"{path}: has {len(samples)} samples, {META} tells of {expected}; run 'eagle3 data' again")
    if not samples:
        raise Eagle3Error(f"{path}: has no samples")
    return samples


def write_samples(folder: Path, train: Iterable[Sample], held: Iterable[Sample], meta: Mapping[str, Any]) -> Path:
    """Write both splits (`held`: eval) and `meta`, to which their sizes are added; whole or not at all.

    Returns the path of meta.json, which comes last: without it a folder is not read. Raises Eagle3Error where the disk
    refuses; what was there before is then as it was.
    """
    told = dict(meta)
    parts = {split: split_file(folder, split).with_suffix(".part") for split in SPLITS}
    last = folder / f"{META}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split, samples in zip(SPLITS, (train, held), strict=True):
            told[split] = _write(parts[split], samples)
        last.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / META).unlink(missing_ok=True)
        for split in SPLITS:
            os.replace(parts[split], split_file(folder, split))
        os.replace(last, folder / META)
    except OSError as fault:
        for part in (*parts.values(), last):
            part.unlink(missing_ok=True)
        raise Eagle3Error(f"{folder}: cannot be written: {fault.strerror or fault}") from fault
    return folder / META


def draft_vocabulary(samples: Iterable[Sample], size: int, vocab: int) -> Tensor:
    """The `size` target ids of [0, vocab) most frequent at mask 1, sorted, i64 [size].

    Ties go to the lower id; where fewer occur, the lowest ids that do not fill up. Raises ConfigError where `size` is
    not in 1…vocab, Eagle3Error for a sample of another vocabulary.
    """
    if not 1 <= size <= vocab:
        raise ConfigError([Problem("draft_vocab_size", f"must be in [1, {vocab}], the target's vocabulary", size)])
    counts: Counter[int] = Counter()
    for sample in samples:
        for start, end in sample.answers:
            counts.update(sample.ids[start:end])
    if counts and not 0 <= min(counts) <= max(counts) < vocab:
        raise Eagle3Error(f"the samples hold token ids in [{min(counts)}, {max(counts)}], the target has {vocab}")
    ranked = sorted(range(vocab), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(ranked[:size]), dtype=torch.int64)


def _sample(text: str, known: dict[int, int]) -> Sample:
    """One line; ValueError says what is wrong with it."""
    row = json.loads(text)
    if not isinstance(row, dict) or not {"ids", "answers"} <= row.keys():
        raise ValueError("wants an object with ids and answers")
    ids, spans = row["ids"], row["answers"]
    if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
        raise ValueError("ids wants a list of token ids")
    if not isinstance(spans, list) or not spans or not all(isinstance(s, list) and len(s) == 2 for s in spans):
        raise ValueError("answers wants a list of at least one [start, end]")
    edges = [0, *(edge for span in spans for edge in span), len(ids)]
    if not all(type(edge) is int for edge in edges) or any(a > b for a, b in pairwise(edges)):
        raise ValueError(f"answers wants spans in order within the {len(ids)} ids, got {spans}")
    if any(start == end for start, end in spans):
        raise ValueError(f"answers has an empty span: {spans}")
    return Sample(tuple(known.setdefault(token, token) for token in ids), tuple((a, b) for a, b in spans))


def _write(path: Path, samples: Iterable[Sample]) -> dict[str, int]:
    """A split's file; its sizes."""
    size = {"samples": 0, "tokens": 0, "answer_tokens": 0}
    with path.open("wb") as raw:
        # no name and no time inside: the same samples are the same bytes
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as file:
            for sample in samples:
                row = {"ids": sample.ids, "answers": sample.answers}
                file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
                size["samples"] += 1
                size["tokens"] += len(sample.ids)
                size["answer_tokens"] += sample.written
        raw.flush()
        os.fsync(raw.fileno())
    return size
