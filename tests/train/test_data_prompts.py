"""Which prompts are asked: once each, none held out, each in one split."""

import pytest

from eagle3.errors import ConfigError
from eagle3.text.prompts import Prompt
from eagle3.train.data_prompts import Chooser, held_out, splits, without_sampling

WORDS = [f"word{i}" for i in range(40)]


def text(*words: str) -> Prompt:
    return Prompt(text=" ".join(words))


def chat(*turns: tuple[str, str]) -> Prompt:
    return Prompt(messages=tuple({"role": role, "content": content} for role, content in turns))


def kept(*prompts: Prompt, held: tuple[Prompt, ...] = ()) -> list[int]:
    """Places of the prompts that are kept."""
    chooser = Chooser(held_out(held))
    return [i for i, prompt in enumerate(prompts) if chooser.take("x", prompt)]


@pytest.mark.parametrize(
    "again",
    [
        Prompt(text="Why is the sea salty?"),
        Prompt(text="  Why is\n\tthe sea   salty? \n"),
        chat(("user", "Why is the  sea salty?")),
        chat(("user", "Why is the sea salty?"), ("assistant", "Rivers bring salt.")),
    ],
)
def test_the_same_question_is_asked_once(again: Prompt) -> None:
    assert kept(Prompt(text="Why is the sea salty?"), again) == [0]


def test_what_differs_is_asked_twice() -> None:
    first = chat(("user", "a"), ("assistant", "b"), ("user", "c"))
    other = chat(("user", "a"), ("assistant", "x"), ("user", "c"))
    assert kept(first, other, Prompt(text="a"), Prompt(text="A"), Prompt(ids=(0,)), Prompt(ids=(0, 1))) == list(
        range(6)
    )
    assert kept(Prompt(ids=(3, 4)), Prompt(ids=(3, 4))) == [0]


def test_nothing_to_ask_is_not_asked_and_all_is_told() -> None:
    chooser = Chooser(held_out([text(*WORDS[:13])]))
    prompts = [Prompt(text=" \n"), chat(("assistant", "hello")), text("a"), text("a"), text(*WORDS)]
    assert [chooser.take("x", prompt) for prompt in prompts] == [False, False, True, False, False]
    tally = chooser.tallies["x"]
    assert (tally.given, tally.unusable, tally.duplicate, tally.held_out, tally.kept) == (5, 2, 1, 1, 1)
    assert chooser.chosen == [("x", text("a"))]


def test_an_answer_of_others_at_the_end_is_left_to_the_target() -> None:
    chooser = Chooser(frozenset())
    chooser.take("x", chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("assistant", "e")))
    ((_, prompt),) = chooser.chosen
    assert prompt == chat(("user", "a"), ("assistant", "b"), ("user", "c"))


@pytest.mark.parametrize(
    ("prompt", "near"),
    [
        pytest.param(text("before", *WORDS[5:18], "after"), True, id="13-in-a-row"),
        pytest.param(text("before", *WORDS[5:17], "after"), False, id="12-in-a-row"),
        pytest.param(text(*WORDS[5:11], "between", *WORDS[11:18]), False, id="13-not-in-a-row"),
        pytest.param(Prompt(text=", ".join(WORDS[5:18]).upper() + "!"), True, id="case-and-signs-apart"),
        pytest.param(chat(("system", "s"), ("user", " ".join(WORDS[9:30]))), True, id="in-a-message"),
        pytest.param(text("short", "one"), True, id="a-short-one-as-a-whole"),
        pytest.param(text("short", "one", "more"), False, id="beyond-a-short-one"),
        pytest.param(Prompt(ids=(9, *range(100, 113), 9)), True, id="13-ids"),
        pytest.param(Prompt(ids=(9, *range(100, 112), 9)), False, id="12-ids"),
    ],
)
def test_what_is_near_a_held_out_prompt_is_left_out(prompt: Prompt, near: bool) -> None:
    held = (text(*WORDS), Prompt(text="Short one?"), Prompt(ids=tuple(range(90, 120))))
    assert kept(prompt, held=held) == ([] if near else [0])


def test_a_prompt_stays_in_its_split_whatever_comes_beside_it() -> None:
    prompts = [(i, i + 1) for i in range(2000)]
    every = dict(zip(prompts, splits(prompts, 0.1, seed=3), strict=True))
    assert 150 < list(every.values()).count("eval") < 250
    half = prompts[1::2][::-1]
    assert splits(half, 0.1, seed=3) == [every[prompt] for prompt in half]
    assert splits(prompts, 0.1, seed=4) != list(every.values())


def test_both_splits_have_something_where_they_can() -> None:
    prompts = [(i,) for i in range(5)]
    assert sorted(splits(prompts, 1e-9, 0)) == ["eval", *["train"] * 4]
    assert sorted(splits(prompts, 0.999999, 0)) == [*["eval"] * 4, "train"]
    assert splits(prompts, 0.0, 0) == ["train"] * 5
    assert splits(prompts[:1], 0.5, 0) == ["train"]
    assert splits([], 0.5, 0) == []


def test_sampling_of_a_prompts_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="--temperature") as caught:
        without_sampling("p.jsonl", [Prompt(text="a"), Prompt(text="b", sampling={"seed": 1})])
    assert caught.value.problems[0].value == ["prompt 1"]
