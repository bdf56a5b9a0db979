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
