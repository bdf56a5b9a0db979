"""`eagle3 generate`: answer prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3.cli.options import Json, takes_overrides
from eagle3.config.flags import HydraFlags
from eagle3.errors import ConfigError, Problem, RunError

if TYPE_CHECKING:
    from eagle3.config.load import Composed
    from eagle3.engine.engine import Engine
    from eagle3.text.prompts import Prompt


@dataclass(frozen=True)
class Options:
    """What a run of `generate` takes beside its configuration; travels to a sweep's workers."""

    prompts: "tuple[Prompt, ...]"
    chat: bool | None  # None: where the tokenizer has a template
    json: bool


@takes_overrides
def generate(
    flags: HydraFlags,
    overrides: list[str],
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="A prompt; may be given several times.")] = None,
    prompt_file: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt-file",
            metavar="FILE",
            help="Prompts: one a line, or .jsonl with prompt, messages or prompt_ids and sampling; - is stdin.",
        ),
    ] = None,
    prompt_ids: Annotated[
        list[str] | None,
        typer.Option("--prompt-ids", metavar="1,2,3", help="A prompt as token ids; needs no tokenizer."),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Use the chat template. [default: if the tokenizer has one]"),
    ] = None,
    json_: Json = False,
) -> int:
    """Answer prompts. All of them run together; answers come in the order of the prompts.

    A prompt without a seed of its own takes sampling.seed plus its place. With --json each line on stdout is a request.

    Examples:

      eagle3 generate --prompt "What is the capital of France?"

      eagle3 generate sampling=sampled sampling.max_new_tokens=64 --prompt-file questions.jsonl --json

      eagle3 generate -m sampling.temperature=0,0.7,1 --prompt "Tell me a story."
    """
    from eagle3.config import load

    if "-" in overrides:
        overrides = [o for o in overrides if o != "-"]
        prompt_file = [*(prompt_file or []), "-"]
    if load.show(flags, overrides):
        return 0
    options = Options(_prompts(prompt, prompt_file, prompt_ids), chat, json_)
    return load.run(partial(task, options), flags, overrides)


def task(options: Options, composed: "Composed") -> float:
    """Answer the prompts of `options` with the engine of a configuration; output tokens a second."""
    from eagle3.build.engine import build_engine
    from eagle3.cli.answers import Answers
    from eagle3.cli.report import loading, print_problems

    print_problems(composed.warnings, "yellow")
    with loading("weights") as progress:
        engine = build_engine(composed, progress)
    prompts = _encoded(engine, options)
    answers = Answers(len(prompts), options.json)
    try:
        for event in engine.stream(prompts, [p.sampling for p in options.prompts]):
            answers.take(event)
    except KeyboardInterrupt:
        for result in engine.abort_all():
            answers.end(result)
        raise
    finally:
        answers.close()
    if answers.refused:
        raise RunError(f"{answers.refused} of {len(prompts)} prompts were refused")
    return answers.rate


def _prompts(
    texts: Sequence[str] | None, files: Sequence[str] | None, ids: Sequence[str] | None
) -> "tuple[Prompt, ...]":
    """All prompts of a command line, or one error with all that is wrong with them."""
    from eagle3.text.prompts import Prompt, read_prompts

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
        problems.append(Problem("prompt", message, None, "command line"))
    if problems:
        raise ConfigError(problems)
    return tuple(prompts)


def _encoded(engine: "Engine", options: Options) -> list[list[int]]:
    """Every prompt's token ids, and every prompt's own sampling checked, before any of them runs."""
    from eagle3.config.request import refused, request_sampling
    from eagle3.text.chat import render
    from eagle3.text.tokenizer import NO_TOKENIZER

    encoded: list[list[int]] = []
    problems: list[Problem] = []
    for i, prompt in enumerate(options.prompts):
        where = f"prompt {i}"
        try:
            request_sampling(engine.config, prompt.sampling)
            if prompt.ids is not None:
                ids = list(prompt.ids)
            elif engine.tokenizer is None:
                raise ConfigError([Problem("prompt", f"the checkpoint has no tokenizer: {NO_TOKENIZER}")])
            else:
                ids = render(engine.tokenizer, prompt.text or prompt.messages or "", chat=options.chat)
            engine.check_prompt(ids)
            encoded.append(ids)
        except ConfigError as error:
            problems += refused(error, where)
    if problems:
        raise ConfigError(problems)
    return encoded
