import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3.errors import ConfigError, UnsupportedError
from eagle3.text.chat import render, render_text
from eagle3.text.tokenizer import Tokenizer

Make = Callable[..., Tokenizer]
Prompt = str | list[dict[str, str]]

HELLO = [{"role": "user", "content": "the cat"}]


def shown(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("prompt", ["the cat", HELLO])
@pytest.mark.parametrize("chat", [None, True])
def test_a_template_is_used_where_there_is_one(
    make: Make, prompt: Prompt, chat: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = make()
    ids = render(tokenizer, prompt, chat=chat)
    assert not caplog.records, "no second BOS was there to drop"
    assert shown(tokenizer, ids) == "<s>[user]the cat</s>[assistant]"
    assert ids[:2] != [0, 0]
    assert 1 in ids  # the template's own special tokens are tokens


@pytest.mark.parametrize(
    ("options", "chat", "text"),
    [
        pytest.param({}, False, "<s>the cat", id="no-chat"),
        pytest.param({"template": None}, None, "<s>the cat", id="no-template"),
        pytest.param({"bos": False}, False, "the cat", id="no-bos"),
    ],
)
def test_a_plain_prompt(make: Make, options: dict[str, object], chat: bool | None, text: str) -> None:
    tokenizer = make(**options)
    assert shown(tokenizer, render(tokenizer, "the cat", chat=chat)) == text


def test_the_answer_continues_a_last_message_of_the_assistant(make: Make) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "the dog"}]
    assert render_text(make(), messages) == "<s>[user]the cat</s>[assistant]the dog"


def test_a_doubled_bos_is_dropped_with_a_warning(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = make()
    with caplog.at_level(logging.WARNING):
        ids = render(tokenizer, "<s>the cat", chat=False)
    assert ids == tokenizer.encode("the cat")
    assert "two BOS tokens" in caplog.text


@pytest.mark.parametrize(
    ("prompt", "chat", "says"),
    [
        pytest.param("the cat", True, "--chat: the tokenizer in .* has no chat template", id="asked"),
        pytest.param(HELLO, None, "a prompt of messages: the tokenizer in", id="messages"),
        pytest.param(HELLO, False, "messages need the chat template", id="messages-no-chat"),
    ],
)
def test_no_template(make: Make, prompt: Prompt, chat: bool | None, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        render(make(template=None), prompt, chat=chat)


def test_a_template_that_refuses(make: Make) -> None:
    with pytest.raises(ConfigError, match="the chat template refuses them: no tools here"):
        render(make(), [{"role": "tool", "content": "x"}])


@pytest.mark.real
def test_the_real_template(smollm2: Path) -> None:
    tokenizer = Tokenizer(smollm2)
    ids = render(tokenizer, "Hello")
    text = shown(tokenizer, ids)
    assert text.startswith("<|im_start|>system\nYou are")
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert ids.count(1) == 3
