"""Stop strings against a plain restatement on the full text."""

import random
from collections.abc import Callable, Sequence

import pytest

from eagle3.text.answer import AnswerText
from eagle3.text.tokenizer import Tokenizer
from helpers.letters import Letters

Make = Callable[..., Tokenizer]


def told(tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str]) -> tuple[list[str], int, str | None]:
    """The pieces that are shown, how many tokens are taken, and the stop string."""
    text = AnswerText(tokenizer, stops)
    count = next((n for n, token in enumerate(ids, 1) if text.push(token)), len(ids))
    return [*text.take(), text.finish()], count, text.stopped_by


def restated(tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str]) -> tuple[str, int, str | None]:
    """All of it decoded anew after each token."""
    for n in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:n])
        found = [(text.find(stop), i) for i, stop in enumerate(stops) if stop in text]
        if found:
            at, which = min(found)
            return text[:at], n, stops[which]
    return tokenizer.decode(ids), len(ids), None


def check(tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str]) -> str | None:
    pieces, count, stop = told(tokenizer, ids, stops)
    assert ("".join(pieces), count, stop) == restated(tokenizer, ids, stops), (ids, stops)
    return stop


def cuts(text: str, rng: random.Random) -> list[str]:
    """Stop strings cut out of a text at random, some of them spoiled at their end."""
    sound = [(a, min(len(text), a + rng.randrange(1, 6))) for a in (rng.randrange(len(text)) for _ in range(3))]
    found = [text[a:b] + rng.choice(["", "", "~", "a"]) for a, b in sound]
    return [stop for stop in found if "\ufffd" not in stop]


@pytest.mark.parametrize("kind", ["letters", "bytes", "fallback"])
def test_any_cut_of_any_tokens(make: Make, kind: str) -> None:
    tokenizer = Letters() if kind == "letters" else make(kind)
    size = 16 if kind == "letters" else tokenizer.vocab_size
    rng, stopped, free = random.Random(1), 0, 0
    for _ in range(1500 if kind == "letters" else 400):
        few = [rng.randrange(size) for _ in range(rng.randrange(1, 6))]  # of few tokens, so that much repeats
        ids = [rng.choice(few) for _ in range(rng.randrange(1, 14))]
        if text := tokenizer.decode(ids):
            stop = check(tokenizer, ids, cuts(text, rng))
            stopped, free = stopped + (stop is not None), free + (stop is None)
    assert min(stopped, free) > 60


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_any_cut_of_real_text(make: Make, kind: str) -> None:
    tokenizer, rng = make(kind), random.Random(2)
    text = "the cat 好🚀 sat\n\non the 你好 mat, é and the dog 世界 log"
    ids = tokenizer.encode(text, add_special_tokens=False)
    for _ in range(150):
        check(tokenizer, ids, cuts(text, rng))


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_nothing_shown_is_taken_back_and_nothing_is_kept_for_long(make: Make, kind: str) -> None:
    tokenizer = make(kind)
    ids = tokenizer.encode("the cat sat on the", add_special_tokens=False)
    pieces, count, stop = told(tokenizer, ids, ["cat nap", "zzz"])
    assert (count, stop) == (len(ids), None)
    assert "".join(pieces) == tokenizer.decode(ids)
    shown = ["".join(pieces[:n]) for n in range(len(pieces) + 1)]
    assert "the " in shown
    assert not {s for s in shown if s.endswith(("the c", "the ca", "the cat", "the cat "))}
    assert shown[-2] == "the cat sat on the", "no end of it begins a stop string"


def test_a_stop_of_a_byte_token_is_not_a_token_late(make: Make) -> None:
    tokenizer = make("fallback")
    ids = tokenizer.encode("a\nb", add_special_tokens=False)
    pieces, count, stop = told(tokenizer, ids, ["\n"])
    assert "".join(pieces) == "a"
    assert (tokenizer.token(ids[count - 1]), stop) == ("<0x0A>", "\n")


@pytest.mark.parametrize(("counted", "want"), [(1, (1, "")), (2, (2, "ab")), (3, (4, "aba")), (5, (None, "ababb"))])
def test_one_that_does_not_count_goes_by(counted: int, want: tuple[int | None, str]) -> None:
    """Only tokens from the `counted`-th on may complete one, and what was complete before is no new one."""
    text, (a, b, ab) = AnswerText(Letters(), ["a", "bb"]), (0, 1, 2)
    stopped = next((n for n, t in enumerate([ab, a, b, b], 1) if text.push(t, counts=n >= counted)), None)
    assert (stopped, "".join(text.take()) + text.finish()) == want
