"""Answers kept as they come, and whose they are."""

from pathlib import Path

import pytest

from eagle3.config.schema import TargetConfig
from eagle3.errors import Eagle3Error
from eagle3.train.data_parts import Parts, key_of, seed_of
from eagle3.train.data_target import claim, target_mark, tokenizer_hash
from helpers.checkpoints import write_target, write_tokenizer


def test_answers_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "parts" / "answers.jsonl"
    with Parts(path) as parts:
        parts.add("a", [5, 6, 1], True)
        parts.add("b", [7], False)
    with Parts(path) as parts:
        assert "a" in parts
        assert "c" not in parts
        assert (list(parts["a"].ids), parts["a"].ended) == ([5, 6, 1], True)
        assert (list(parts["b"].ids), parts["b"].ended) == ([7], False)


def test_a_torn_line_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Parts(path) as parts:
        parts.add("a", [5], True)
    whole = path.read_bytes()
    for cut in (1, 10, len(whole) - 1):
        path.write_bytes(whole + whole[:cut])
        with Parts(path) as parts:
            parts.add("b", [6], True)
        with Parts(path) as parts:
            assert list(parts["a"].ids) == [5]
            assert list(parts["b"].ids) == [6]


@pytest.mark.parametrize("line", ["no json", "[]", '{"key": "a"}', '{"key": "a", "ids": ["x"], "ended": true}'])
def test_a_broken_line_is_no_answer(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    with Parts(path) as parts:
        parts.add("a", [5], True)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(Eagle3Error, match=r"answers\.jsonl:2: is no answer"):
        Parts(path)


def test_a_full_disk_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Parts(tmp_path / "answers.jsonl") as parts:

        class Full:
            def write(self, row: bytes) -> int:
                return len(row) - 1

            def close(self) -> None: ...

        monkeypatch.setattr(parts, "_file", Full())
        with pytest.raises(Eagle3Error, match=r"answers\.jsonl: cannot be written: No space left"):
            parts.add("a", [5], True)
        assert "a" not in parts


def test_keys_and_seeds_tell_facts_apart() -> None:
    assert key_of((1, 2), {"a": 1, "b": 2.0}) == key_of([1, 2], {"b": 2.0, "a": 1})
    assert key_of((1, 2)) != key_of((1, 3))
    seeds = {seed_of("answer", 0, i) for i in range(200)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_a_folder_is_one_targets(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    claim(folder, {"checkpoint": "a", "vocab_size": 64})
    claim(folder, {"vocab_size": 64, "checkpoint": "a"})
    with pytest.raises(Eagle3Error, match=r"another target: checkpoint a, here b$"):
        claim(folder, {"checkpoint": "b", "vocab_size": 64})


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(Eagle3Error, match="no data of ours"):
        claim(tmp_path, {"checkpoint": "a"})
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(Eagle3Error, match="Not a directory"):
        claim(tmp_path / "thesis.tex", {"checkpoint": "a"})


def test_the_mark_knows_the_text_side(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "t")
    assert tokenizer_hash(folder) is None
    write_tokenizer(folder)
    target = TargetConfig(checkpoint=str(folder))
    mark = target_mark(target)
    assert mark["vocab_size"] == 64
    template = next(folder.glob("chat_template*"))
    template.write_text(template.read_text() + " ")
    assert target_mark(target)["tokenizer"] != mark["tokenizer"]
