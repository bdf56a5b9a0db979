"""Prompts of a command line: read, then turned into token ids, with every fault told at once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3.config.request import RequestSampling, placed
from eagle3.errors import ConfigError, Problem
from eagle3.text.chat import render
from eagle3.text.prompts import Prompt, scan_prompts
from eagle3.text.tokenizer import NO_TOKENIZER, TOKENIZER_FILES

if TYPE_CHECKING:
    from eagle3.config.load import Composed
    from eagle3.engine.engine import Engine

_NO_TEXT = Problem("prompt", f"the checkpoint has no tokenizer: {NO_TOKENIZER}")


def given_prompts(
    texts: Sequence[str] | None,
    files: Sequence[str] | None,
    ids: Sequence[str] | None,
    stray: Sequence[str] = (),
) -> tuple[Prompt, ...]:
    """All prompts of a command line, or one error with all that is wrong with them; `stray` are words in no flag."""
    prompts, problems = scanned_prompts(texts, files, ids, stray)
    if problems:
        raise ConfigError(problems)
    return prompts


def scanned_prompts(
    texts: Sequence[str] | None,
    files: Sequence[str] | None,
    ids: Sequence[str] | None,
    stray: Sequence[str] = (),
) -> tuple[tuple[Prompt, ...], list[Problem]]:
    """As `given_prompts`: the good ones, and what is wrong with the others."""
    prompts = [Prompt(text=text) for text in texts or ()]
    problems: list[Problem] = []
    for source in files or ():
        try:
            good, bad = scan_prompts(source if source == "-" else Path(source))
            prompts += good
            problems += bad
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
    return tuple(prompts), problems


def file_faults(composed: "Composed") -> list[Problem]:
    """What is wrong with the files of both models as far as they are here; nothing is loaded or fetched."""
    from eagle3.build.folders import at_hand
    from eagle3.build.preflight import preflight

    folders = at_hand(composed.config)
    found = preflight(composed, folders).problems if folders.target or folders.head else folders.problems
    told = {problem.key for problem in found}
    return [*found, *(problem for problem in folders.lost if problem.key not in told)]


def faults_before(composed: "Composed", prompts: Sequence[Prompt]) -> list[Problem]:
    """What is known to be wrong with prompts, each with its place, before anything is loaded or fetched.

    Where there is something, or a folder is nowhere, with what is wrong with the files of both models.
    """
    from eagle3.build.folders import at_hand, made_up
    from eagle3.build.target import facts_in
    from eagle3.models.faults import Faults

    cfg = composed.config
    folders, sampling = at_hand(cfg), RequestSampling(cfg)
    unknown = folders.target is None and not made_up(cfg.target)
    facts = None if unknown else Faults("target.checkpoint").attempt(lambda: facts_in(folders.target, cfg.target), None)
    texts = unknown or _has_tokenizer(folders.target)
    problems: list[Problem] = []
    for i, prompt in enumerate(prompts):
        where = _place(i, prompt)
        try:
            stop = sampling(prompt.sampling).stop
        except ConfigError as error:
            problems += placed(error, where)
            stop = None
        if stop and not texts:
            problems.append(Problem("stop", "wants a tokenizer, which this checkpoint has not", stop, where))
        if prompt.ids is None and not texts:
            problems.append(replace(_NO_TEXT, origin=where))
        if facts is not None and (bad := [t for t in prompt.ids or () if not 0 <= t < facts.vocab]):
            problems.append(Problem("prompt", f"wants token ids in [0, {facts.vocab}), got {bad[:5]}", bad, where))
    return file_faults(composed) + problems if problems or folders.lost else []


def _has_tokenizer(folder: Path | None) -> bool:
    return folder is not None and any((folder / name).is_file() for name in TOKENIZER_FILES)


def _place(i: int, prompt: Prompt) -> str:
    return prompt.origin or f"prompt {i}"


def encoded(engine: "Engine", prompts: Sequence[Prompt], chat: bool | None) -> list[list[int]]:
    """Every prompt's token ids, and every prompt's own sampling checked, before any of them runs."""
    rows: list[list[int]] = []
    problems: list[Problem] = []
    for i, prompt in enumerate(prompts):
        where = _place(i, prompt)
        try:
            engine.sampling(prompt.sampling)
            if prompt.ids is not None:
                ids = list(prompt.ids)
            elif engine.tokenizer is None:
                raise ConfigError([_NO_TEXT])
            else:
                ids = render(engine.tokenizer, prompt.text or prompt.messages or "", chat=chat)
            engine.check_prompt(ids)
            rows.append(ids)
        except ConfigError as error:
            problems += placed(error, where)
    if problems:
        raise ConfigError(problems)
    return rows
