"""`eagle3 generate`: answer prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3.cli.options import Chat, Ids, Json, Texts, takes_overrides
from eagle3.config.flags import HydraFlags
from eagle3.errors import ConfigError, Problem, RunError

if TYPE_CHECKING:
    from eagle3.config.load import Composed
    from eagle3.config.results import Outcome
    from eagle3.text.prompts import Prompt


@dataclass(frozen=True)
class Options:
    """What a run of `generate` takes beside its configuration; travels to a sweep's workers."""

    prompts: "tuple[Prompt, ...]"
    chat: bool | None  # None: where the tokenizer has a template
    json: bool
    trace_steps: bool
    show_accepted: bool
    verify: bool


@takes_overrides
def generate(
    flags: HydraFlags,
    overrides: list[str],
    prompt: Texts = None,
    prompt_file: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt-file",
            metavar="FILE",
            help="Prompts: one a line, or .jsonl with prompt, messages or prompt_ids and sampling; - is stdin.",
        ),
    ] = None,
    prompt_ids: Ids = None,
    chat: Chat = None,
    json_: Json = False,
    trace_steps: Annotated[
        bool, typer.Option("--trace-steps", help="With --json: the accepted drafts of every step.")
    ] = False,
    show_accepted: Annotated[
        bool, typer.Option("--show-accepted", help="Colour accepted drafts, on a terminal or with FORCE_COLOR.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Afterwards, hold each answer against the target alone, token by token.")
    ] = False,
) -> int:
    """Answer prompts. All of them run together; answers come in the order of the prompts.

    A prompt without a seed of its own takes sampling.seed plus its place. With --json each line on stdout is a request.
    Its metrics.spec tells of drafting: mean_acceptance_length = 1 + accepted / steps, draft_acceptance_rate =
    accepted / proposed drafts, acceptance_histogram[i] = steps with i accepted; the last, cut step is included.

    Examples:

      eagle3 generate --prompt "What is the capital of France?"

      eagle3 generate sampling=sampled sampling.max_new_tokens=64 --prompt-file questions.jsonl --json

      eagle3 generate conf=mine spec=tree --prompt "Tell me a story." --show-accepted --verify

      eagle3 generate -m sampling.temperature=0,0.7,1 --prompt "Tell me a story."
    """
    from eagle3.cli.prompts import scanned_prompts
    from eagle3.config import load

    if trace_steps and not json_:
        raise typer.BadParameter("--trace-steps adds to the JSON: give --json too")
    if show_accepted and json_:
        raise typer.BadParameter("--show-accepted colours text: leave out --json, or use --trace-steps")
    if "-" in overrides:
        overrides = [o for o in overrides if o != "-"]
        prompt_file = [*(prompt_file or []), "-"]
    if load.show(flags, overrides):
        return 0
    stray = [o for o in overrides if " " in o and "=" not in o]
    prompts, problems = scanned_prompts(prompt, prompt_file, prompt_ids, stray)
    if problems:
        if prompts and not flags.multirun:
            problems += _others(flags, overrides, prompts)
        raise ConfigError(problems)
    options = Options(prompts, chat, json_, trace_steps, show_accepted, verify)
    from eagle3.cli.prompts import file_faults

    return load.run(partial(task, options), flags, overrides, look=file_faults)


def _others(flags: HydraFlags, overrides: list[str], prompts: "Sequence[Prompt]") -> "Sequence[Problem]":
    """What is wrong beside lines that cannot be read: with the configuration, or else with the other prompts."""
    from eagle3.cli.prompts import faults_before
    from eagle3.config import load

    try:
        composed = load.compose(overrides, config_dir=flags.config_dir, config_name=flags.config_name)
    except ConfigError as error:
        return error.problems
    return faults_before(composed, prompts)


def task(options: Options, composed: "Composed") -> "Outcome":
    """Answer the prompts of `options` with the engine of a configuration; output tokens a second and tau."""
    from eagle3.build.engine import build_engine
    from eagle3.cli.answers import Answers
    from eagle3.cli.prompts import encoded, faults_before
    from eagle3.cli.report import loading, print_heading, print_problems
    from eagle3.config.results import Outcome

    print_problems(composed.warnings, "yellow")
    if problems := faults_before(composed, options.prompts):
        raise ConfigError(problems)
    with loading("weights") as progress:
        engine = build_engine(composed, progress)
    prompts = encoded(engine, options.prompts, options.chat)
    if not options.json:
        print_heading()
    answers = Answers(
        len(prompts), options.json, trace=options.trace_steps, colour=options.show_accepted, verify=options.verify
    )
    try:
        for event in engine.stream(prompts, [p.sampling for p in options.prompts]):
            answers.take(event)
        if options.verify:
            answers.verify(engine.rescore)
    except KeyboardInterrupt:
        for result in engine.abort_all():
            answers.end(result)
        raise
    finally:
        spec = engine.stats()
        answers.close(spec)
    if answers.refused:
        raise RunError(f"{answers.refused} of {len(prompts)} prompts were refused")
    numbers = {"output_throughput": answers.rate, "tau": spec.mean_acceptance_length if spec else None}
    return Outcome(answers.rate, numbers, acceptance_valid=spec is None or spec.acceptance_valid)
