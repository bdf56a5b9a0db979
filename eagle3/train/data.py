"""Make training data: prompts chosen, answered by the target, split and written."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eagle3.engine.engine import Engine
from eagle3.errors import ConfigError, Problem
from eagle3.text.chat import render
from eagle3.text.prompts import Prompt
from eagle3.text.tokenizer import NO_TOKENIZER, Tokenizer
from eagle3.train.data_answers import SELF, Job, Tell, answer, job, write_questions
from eagle3.train.data_parts import Parts, seed_of
from eagle3.train.data_prompts import Chooser, held_out, splits
from eagle3.train.data_target import claim
from eagle3.train.samples import Sample, Split, read_meta, write_samples

DISK_BYTES = 8  # a token: as text in parts/, and zipped


@dataclass(frozen=True)
class DataOptions:
    """What is asked of whom, and how."""

    sources: tuple[tuple[str, tuple[Prompt, ...]], ...]  # name and prompts, what comes first is kept
    questions: int = 0  # that the target writes itself
    held: tuple[Prompt, ...] = ()
    temperatures: tuple[float, ...] = (0.0, 1.0)  # an answer each
    max_new_tokens: int = 512
    eval_share: float = 0.02
    seed: int = 0
    chat: bool | None = None  # None: where the tokenizer has a template
    named: Mapping[str, Any] = field(default_factory=dict)  # how the configuration names the prompts, for meta.json


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, its split, and the answers that are wanted."""

    ids: tuple[int, ...]
    split: Split
    jobs: tuple[Job, ...]


def make_data(
    engine: Engine, target: dict[str, Any], options: DataOptions, out: Path, say: Callable[[str], None], tell: Tell
) -> dict[str, Any]:
    """Fill `out` with samples of the target that `target` (see `target_mark`) tells of; returns meta.json.

    Answers already in `out` are kept. Raises Eagle3Error for prompts, sets and folders that will not do.
    """
    claim(out, target)
    # ids are all that is wanted: without a tokenizer the engine makes no text on the way
    tokenizer, engine.tokenizer = engine.tokenizer, None
    chooser = Chooser(held_out(options.held))
    for name, prompts in options.sources:
        for prompt in prompts:
            chooser.take(name, prompt)
    with Parts(out / "parts" / "answers.jsonl") as parts:
        rows = encoded(engine, tokenizer, chooser, 0, options.chat)
        if options.questions:
            if tokenizer is None:
                raise ConfigError([Problem("data.sets", f"{SELF}: the checkpoint has no tokenizer: {NO_TOKENIZER}")])
            first = len(chooser.chosen)
            write_questions(engine, tokenizer, options.questions, options.seed, chooser, parts, tell)
            rows += encoded(engine, tokenizer, chooser, first, options.chat)
        questions = planned(engine, distinct(rows, chooser), chooser, options)
        if not questions:
            told = "; ".join(f"{name} {asdict(tally)}" for name, tally in chooser.tallies.items())
            raise ConfigError(
                [Problem("prompts", f"none is left to answer: {told}", origin="data.sets and data.prompt_files")]
            )
        jobs = [job for question in questions for job in question.jobs]
        say(sizes(questions, parts))
        answer(engine, jobs, parts, "answers", tell)
        meta = {
            "target": target,
            **options.named,
            "sources": {name: asdict(tally) for name, tally in chooser.tallies.items()},
            "prompts": dict(Counter(question.split for question in questions)),
            "answers": {"ended": sum(parts[job.key].ended for job in jobs), "all": len(jobs)},
            "temperatures": list(options.temperatures),
            "max_new_tokens": options.max_new_tokens,
            "sampling": {k: getattr(engine.config.sampling, k) for k in ("top_k", "top_p", "min_p", "ignore_eos")},
            "eval_share": options.eval_share,
            "seed": options.seed,
        }
        write_samples(out, samples(questions, "train", parts), samples(questions, "eval", parts), meta)
    return read_meta(out)


def encoded(
    engine: Engine, tokenizer: Tokenizer | None, chooser: Chooser, first: int, chat: bool | None
) -> list[tuple[str, tuple[int, ...]]]:
    """Source and ids of what was chosen from `first` on; ConfigError with all that cannot be ids."""
    rows: list[tuple[str, tuple[int, ...]]] = []
    problems: list[Problem] = []
    for name, prompt in chooser.chosen[first:]:
        try:
            if prompt.ids is not None:
                ids: Sequence[int] = prompt.ids
            elif tokenizer is None:
                raise ConfigError([Problem("prompt", f"the checkpoint has no tokenizer: {NO_TOKENIZER}")])
            else:
                ids = render(tokenizer, prompt.text or prompt.messages or "", chat=chat)
            engine.check_prompt(ids)
            rows.append((name, tuple(ids)))
        except ConfigError as error:
            problems += [Problem(p.key, p.message, p.value, name) for p in error.problems]
    if problems:
        raise ConfigError(problems[:10])
    return rows


def distinct(rows: Sequence[tuple[str, tuple[int, ...]]], chooser: Chooser) -> list[tuple[str, tuple[int, ...]]]:
    """`rows` without prompts that became the same ids; tallied."""
    seen: dict[tuple[int, ...], str] = {}
    for name, ids in rows:
        if ids in seen:
            chooser.tallies[name].duplicate += 1
            chooser.tallies[name].kept -= 1
        seen.setdefault(ids, name)
    return [(name, ids) for ids, name in seen.items()]


def planned(
    engine: Engine, rows: Sequence[tuple[str, tuple[int, ...]]], chooser: Chooser, options: DataOptions
) -> list[Question]:
    """What is asked; prompts that leave no room for an answer are left out and tallied."""
    most = engine.scheduler.limits.max_seq_len - 1
    for name, ids in rows:
        if len(ids) > most:
            chooser.tallies[name].too_long += 1
            chooser.tallies[name].kept -= 1
    fitting = [ids for _, ids in rows if len(ids) <= most]
    found = []
    for ids, split in zip(fitting, splits(fitting, options.eval_share, options.seed), strict=True):
        before: Counter[float] = Counter()  # the n-th answer at a temperature draws anew
        jobs = []
        for t in options.temperatures:
            seed = seed_of("answer", options.seed, ids, t, before[t])
            jobs.append(job(engine, ids, options.max_new_tokens, seed, temperature=t))
            before[t] += 1
        found.append(Question(ids, split, tuple(jobs)))
    return found


def sizes(questions: Sequence[Question], parts: Parts) -> str:
    """What is about to be done, in a line."""
    split = Counter(question.split for question in questions)
    missing = [job for question in questions for job in question.jobs if job.key not in parts]
    every = sum(len(question.jobs) for question in questions)
    tokens = sum(job.sampling["max_new_tokens"] for job in missing)
    read = sum(len(job.ids) for job in missing)
    disk = DISK_BYTES * (tokens + read) / 1e6
    return (
        f"{len(questions)} prompts ({split['train']} train, {split['eval']} eval), {every} answers, "
        f"{every - len(missing)} of them there; to read {read} tokens, to write at most {tokens}; "
        f"at most {disk:.1f} MB more on disk"
    )


def samples(questions: Sequence[Question], split: Split, parts: Parts) -> Iterator[Sample]:
    """Prompt and answer of each question of a split, question by question."""
    for question in questions:
        if question.split == split:
            for wanted in question.jobs:
                written = parts[wanted.key].ids
                ids = (*question.ids, *written)
                yield Sample(ids, ((len(question.ids), len(ids)),))
