import random
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3.text.incremental import IncrementalDecoder
from eagle3.text.tokenizer import Tokenizer

Make = Callable[..., Tokenizer]

TEXTS = [
    "the cat sat on the mat",
    "  leading  and   inner spaces ",
    "你好，世界。日本語のテキスト、한국어",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, \U0001f680 rocket, é combining",
    "def f(x):\n\tif x > 1 :\n        return [x ** 2, 'a , b']  # don't\n",
    "مرحبا بالعالم and नमस्ते",
    "a literal \ufffd sign, and at the end \ufffd",
    "▁ the sign itself",
    "",
]


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = IncrementalDecoder(tokenizer)
    return [*map(decoder.push, ids), decoder.finish()]


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_the_sum_is_the_whole(make: Make, kind: str, text: str) -> None:
    tokenizer = make(kind)
    ids = tokenizer.encode(text)
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_the_sum_is_the_whole_for_any_tokens(make: Make, kind: str) -> None:
    tokenizer = make(kind)
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(1, 12))]
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids), ids


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_no_piece_holds_part_of_a_character(make: Make, kind: str) -> None:
    tokenizer = make(kind)
    text = "好🚀好 a🚀"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > len(text) + 3
    given = pieces(tokenizer, ids)
    assert "".join(given) == text
    assert not any("\ufffd" in piece for piece in given)


def test_text_comes_as_soon_as_it_is_certain(make: Make) -> None:
    tokenizer = make("bytes")
    ids = tokenizer.encode("a🚀b", add_special_tokens=False)
    assert len(ids) == 6
    assert pieces(tokenizer, ids) == ["a", "", "", "", "🚀", "b", ""]


def test_a_cut_character_comes_out_at_the_end(make: Make) -> None:
    tokenizer = make("bytes")
    ids = tokenizer.encode("a🚀", add_special_tokens=False)[:-1]
    assert pieces(tokenizer, ids) == ["a", "", "", "", "\ufffd"]


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_special_tokens_are_no_text_and_keep_the_next_space(make: Make, kind: str) -> None:
    tokenizer = make(kind)
    the = tokenizer.encode(" the", add_special_tokens=False)[-1]
    ids = [the, 1, the, 0, the, 1]
    given = pieces(tokenizer, ids)
    assert "".join(given) == tokenizer.decode(ids)
    assert given[2] == " the"
    assert (given[1], given[3], given[5], given[6]) == ("", "", "", "")


@pytest.mark.real
def test_the_real_tokenizer(smollm2: Path) -> None:
    tokenizer = Tokenizer(smollm2)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_an_id_beyond_the_tokenizer_has_no_text(make: Make, kind: str) -> None:
    tokenizer = make(kind)
    ids = tokenizer.encode("the cat sat", add_special_tokens=False)
    beyond = tokenizer.vocab_size + 3  # a row of a padded vocabulary
    padded = [beyond, *ids[:2], beyond, beyond, *ids[2:], beyond]
    assert "".join(pieces(tokenizer, padded)) == tokenizer.decode(padded) == "the cat sat"
