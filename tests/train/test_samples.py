"""Samples on disk, and the vocabulary counted from them."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3.errors import ConfigError, Eagle3Error
from eagle3.train.samples import Sample, draft_vocabulary, read_meta, read_samples, split_file, write_samples

TRAIN = [Sample((5, 6, 7, 300), ((2, 4),)), Sample((1, 2, 3, 4, 5), ((1, 2), (4, 5)))]
EVAL = [Sample((9, 300), ((1, 2),))]


def put(folder: Path, *lines: str, samples: int | None = None) -> Path:
    """A folder whose train split is these lines."""
    write_samples(folder, [], EVAL, {})
    split_file(folder, "train").write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    meta = read_meta(folder)
    meta["train"]["samples"] = len(lines) if samples is None else samples
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "new" / "data", iter(TRAIN), iter(EVAL), {"seed": 3})
    assert read_samples(path.parent, "train") == TRAIN
    assert read_samples(path.parent, "eval") == EVAL
    meta = read_meta(path.parent)
    assert meta["seed"] == 3
    assert meta["train"] == {"samples": 2, "tokens": 9, "answer_tokens": 4}
    assert sorted(p.name for p in path.parent.iterdir()) == ["eval.jsonl.gz", "meta.json", "train.jsonl.gz"]


def test_the_same_samples_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_samples(tmp_path / name, TRAIN, EVAL, {})
    assert split_file(tmp_path / "a", "train").read_bytes() == split_file(tmp_path / "b", "train").read_bytes()


def test_a_disk_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def failing() -> Iterator[Sample]:
        yield TRAIN[1]
        raise OSError(28, "No space left on device")

    write_samples(tmp_path, TRAIN, EVAL, {"seed": 1})
    with pytest.raises(Eagle3Error, match="No space left"):
        write_samples(tmp_path, EVAL, failing(), {"seed": 2})
    assert read_samples(tmp_path, "train") == TRAIN
    assert read_meta(tmp_path)["seed"] == 1
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "property name"),
        ("[1]", "wants an object"),
        ('{"ids": [1]}', "ids and answers"),
        ('{"ids": [1, -2], "answers": [[0, 1]]}', "list of token ids"),
        ('{"ids": [1, true], "answers": [[0, 1]]}', "list of token ids"),
        ('{"ids": [1, 2], "answers": []}', "at least one"),
        ('{"ids": [1, 2], "answers": [[0]]}', "at least one"),
        ('{"ids": [1, 2], "answers": [[1, 3]]}', "within the 2 ids"),
        ('{"ids": [1, 2, 3], "answers": [[1, 3], [2, 3]]}', "in order"),
        ('{"ids": [1, 2], "answers": [[1, 1]]}', "empty span"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, told: str) -> None:
    folder = put(tmp_path, '{"ids": [1, 2], "answers": [[1, 2]]}', line)
    with pytest.raises(Eagle3Error, match=r"train\.jsonl\.gz:2: ") as caught:
        read_samples(folder, "train")
    assert told in str(caught.value)


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    folder = put(tmp_path, *['{"ids": [1, 2], "answers": [[1, 2]]}'] * 3)
    path = split_file(folder, "train")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Eagle3Error, match=r"train\.jsonl\.gz:\d"):
        read_samples(folder, "train")
    path.write_text("no gzip\n")
    with pytest.raises(Eagle3Error, match=r"train\.jsonl\.gz:1: cannot be read: Not a gzipped"):
        read_samples(folder, "train")


def test_what_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(Eagle3Error, match=r"meta\.json: No such file.*eagle3 data"):
        read_samples(tmp_path, "train")
    with pytest.raises(Eagle3Error, match=r"train\.jsonl\.gz: has no samples"):
        read_samples(put(tmp_path), "train")
    with pytest.raises(Eagle3Error, match=r"has 1 samples, meta\.json tells of 2"):
        read_samples(put(tmp_path, '{"ids": [1, 2], "answers": [[1, 2]]}', samples=2), "train")
    split_file(tmp_path, "train").unlink()
    with pytest.raises(Eagle3Error, match=r"train\.jsonl\.gz: cannot be read: No such file"):
        read_samples(tmp_path, "train")
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(Eagle3Error, match="train and eval"):
        read_samples(tmp_path, "train")


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        pytest.param(1, [7], id="the-most-frequent"),
        pytest.param(2, [4, 7], id="a-tie-goes-to-the-lower-id"),
        pytest.param(3, [4, 7, 8], id="sorted-by-id"),
        pytest.param(5, [0, 1, 4, 7, 8], id="the-lowest-ids-fill-up"),
        pytest.param(10, list(range(10)), id="all"),
    ],
)
def test_the_vocabulary_is_the_most_frequent(size: int, wanted: list[int]) -> None:
    # 3 and 9 stand at mask 0 alone; 4 and 8 come once each, 7 twice
    samples = [Sample((3, 3, 3, 8, 7), ((3, 5),)), Sample((7, 9, 9, 4), ((0, 1), (3, 4)))]
    found = draft_vocabulary(samples, size, 10)
    assert found.tolist() == wanted
    assert found.dtype.is_signed
    assert found.element_size() == 8


def test_a_vocabulary_that_cannot_be_is_refused() -> None:
    for size in (0, 11):
        with pytest.raises(ConfigError, match=r"\[1, 10\]"):
            draft_vocabulary([], size, 10)
    with pytest.raises(Eagle3Error, match=r"\[300, 300\], the target has 256"):
        draft_vocabulary(EVAL, 4, 256)
