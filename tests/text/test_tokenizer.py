import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3.errors import WeightError
from eagle3.text.tokenizer import Tokenizer, end_token_ids

Make = Callable[..., Tokenizer]
Config = dict[str, object] | None


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
@pytest.mark.parametrize("text", ["the cat", "  two spaces", "你好 👩‍👩‍👧 \U0001f680", "def f():\n\treturn 1 , 2", ""])
def test_there_and_back(make: Make, kind: str, text: str) -> None:
    tokenizer = make(kind)
    ids = tokenizer.encode(text)
    assert ids[0] == 0
    assert ids[1:] == tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


def test_special_tokens(make: Make) -> None:
    tokenizer = make()
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, (1,))
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.vocab_size == len(tokenizer.hf.get_vocab())
    assert tokenizer.decode([0, 1]) == ""
    assert tokenizer.decode([0, 1], skip_special_tokens=False) == "<s></s>"
    assert (tokenizer.token(1), tokenizer.token(99999)) == ("</s>", "")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    assert Tokenizer.find(tmp_path) is None
    with pytest.raises(WeightError, match=r"has no tokenizer .*--prompt-ids"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"model": 3}'])
def test_a_broken_tokenizer_is_never_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(WeightError, match=r"cannot be read: .*--prompt-ids"):
        Tokenizer.find(tmp_path)


@pytest.mark.parametrize(
    ("generation", "config", "ids"),
    [
        pytest.param({"eos_token_id": 7}, {"eos_token_id": 9}, (1, 7, 9), id="union"),
        pytest.param({"eos_token_id": [7, 8, 1]}, {"eos_token_id": None}, (1, 7, 8), id="list"),
        pytest.param(None, {"text_config": {"eos_token_id": [5]}}, (1, 5), id="nested"),
        pytest.param(None, None, (1,), id="tokenizer-alone"),
    ],
)
def test_end_tokens(make: Make, tmp_path: Path, generation: Config, config: Config, ids: tuple[int, ...]) -> None:
    tokenizer = make()
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    assert end_token_ids(tmp_path, tokenizer) == ids


@pytest.mark.parametrize("text", ["{", "[]", '{"eos_token_id": ["a"]}'])
def test_end_tokens_of_a_broken_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightError, match=r"config\.json: not a configuration"):
        end_token_ids(tmp_path)
