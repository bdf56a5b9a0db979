"""From a prompt as a user gives it to token ids: through the chat template, or as it is."""

import logging
from collections.abc import Mapping, Sequence

from jinja2 import TemplateError

from eagle3.errors import ConfigError, Problem, UnsupportedError
from eagle3.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, str]]  # each with role and content


def render(tokenizer: Tokenizer, prompt: str | Messages, *, chat: bool | None = None) -> list[int]:
    """The ids of `prompt`. `chat` None uses the chat template if there is one.

    A rendered prompt is tokenised without special tokens: the template has written them. Raises
    UnsupportedError where a template is needed and there is none, ConfigError where it refuses the messages.
    """
    if wants_chat(tokenizer, prompt, chat):
        ids = tokenizer.encode(render_text(tokenizer, prompt), add_special_tokens=False)
    else:
        assert isinstance(prompt, str)
        ids = tokenizer.encode(prompt)
    bos = tokenizer.bos_id
    if bos is not None and ids[:2] == [bos, bos]:
        log.warning("the prompt begins with two BOS tokens (id %d); one is dropped", bos)
        ids = ids[1:]
    return ids


def wants_chat(tokenizer: Tokenizer, prompt: str | Messages, chat: bool | None) -> bool:
    """Whether `prompt` goes through the chat template; UnsupportedError where it must and cannot."""
    has_template = tokenizer.chat_template is not None
    if not isinstance(prompt, str) and chat is False:
        raise UnsupportedError("messages need the chat template: leave out --no-chat, or give a plain prompt")
    if not has_template and (chat or not isinstance(prompt, str)):
        asked = "--chat" if chat else "a prompt of messages"
        raise UnsupportedError(f"{asked}: the tokenizer in {tokenizer.folder} has no chat template")
    return has_template and chat is not False


def render_text(tokenizer: Tokenizer, prompt: str | Messages) -> str:
    """What the chat template makes of `prompt` (a text is one user message), up to where the answer begins.

    Where the last message is the assistant's, the answer continues it.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(map(dict, prompt))
    goes_on = bool(messages) and messages[-1]["role"] == "assistant"
    try:
        text: str = tokenizer.hf.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on
        )
    except (TemplateError, ValueError) as fault:
        raise ConfigError(
            [Problem("messages", f"the chat template refuses them: {fault}", prompt, "the prompt")]
        ) from fault
    return text
