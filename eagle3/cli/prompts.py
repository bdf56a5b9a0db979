"""Prompts of a command line: read, then turned into token ids, with every fault told at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3.config.request import placed
from eagle3.errors import ConfigError, Problem
from eagle3.text.chat import render
from eagle3.text.prompts import Prompt, read_prompts
from eagle3.text.tokenizer import NO_TOKENIZER

if TYPE_CHECKING:
    from eagle3.engine.engine import Engine


def given_prompts(
    texts: Sequence[str] | None,
    files: Sequence[str] | None,
    ids: Sequence[str] | None,
    stray: Sequence[str] = (),
) -> tuple[Prompt, ...]:
    """All prompts of a command line, or one error with all that is wrong with them; `stray` are words in no flag."""
    prompts = [Prompt(text=text) for text in texts or ()]
    problems: list[Problem] = []
    for source in files or ():
        try:
            prompts += read_prompts(source if source == "-" else Path(source))
        except ConfigError as error:
            problems += error.problems
    for given in ids or ():
        try:
            prompts.append(Prompt(ids=tuple(int(part) for part in given.split(","))))
        except ValueError:
            problems.append(Problem("--prompt-ids", "wants token ids such as 1,2,3", given, "command line"))
    if not prompts and not problems:
        message = "none is given: use --prompt TEXT, --prompt-file FILE (- is stdin) or --prompt-ids 1,2,3"
        if stray:
            message = f"none is given; did you mean --prompt {stray[0]!r}?"
        problems.append(Problem("prompt", message, list(stray) or None, "command line"))
    if problems:
        raise ConfigError(problems)
    return tuple(prompts)


def encoded(engine: "Engine", prompts: Sequence[Prompt], chat: bool | None) -> list[list[int]]:
    """Every prompt's token ids, and every prompt's own sampling checked, before any of them runs."""
    rows: list[list[int]] = []
    problems: list[Problem] = []
    for i, prompt in enumerate(prompts):
        where = f"prompt {i}"
        try:
            engine.sampling(prompt.sampling)
            if prompt.ids is not None:
                ids = list(prompt.ids)
            elif engine.tokenizer is None:
                raise ConfigError([Problem("prompt", f"the checkpoint has no tokenizer: {NO_TOKENIZER}")])
            else:
                ids = render(engine.tokenizer, prompt.text or prompt.messages or "", chat=chat)
            engine.check_prompt(ids)
            rows.append(ids)
        except ConfigError as error:
            problems += placed(error, where)
    if problems:
        raise ConfigError(problems)
    return rows
