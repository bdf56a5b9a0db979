"""What the target itself writes: answers, and questions to be answered."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eagle3.engine.engine import Engine
from eagle3.errors import RunError, UnsupportedError
from eagle3.text.chat import render_text
from eagle3.text.prompts import Prompt
from eagle3.text.tokenizer import Tokenizer
from eagle3.train.data_parts import Parts, key_of, seed_of
from eagle3.train.data_prompts import Chooser

log = logging.getLogger(__name__)

Tell = Callable[[str, int, int, int], None]  # what, done, of how many, tokens written by this run

SELF = "self"
QUESTION_TOKENS = 256  # what is longer is seldom a question
QUESTION_SAMPLING = {"temperature": 1.0, "top_k": None, "top_p": 0.95, "min_p": 0.0}
PLACE = "\u27e6question\u27e7"  # stands where a user's words go


@dataclass(frozen=True)
class Job:
    """One answer to be written. `key` names all that decides it."""

    ids: tuple[int, ...]
    sampling: dict[str, Any]  # in place of the configuration's
    key: str


def job(engine: Engine, ids: tuple[int, ...], max_new_tokens: int, seed: int, **sampling: Any) -> Job:  # noqa: ANN401
    """An answer to `ids` of at most `max_new_tokens`, and as many as there is room for."""
    room = engine.scheduler.limits.max_seq_len - len(ids)
    own = {**sampling, "max_new_tokens": min(max_new_tokens, room), "seed": seed}
    return Job(ids, own, key_of(ids, {**asdict(engine.config.sampling), **own}))


def answer(engine: Engine, jobs: Sequence[Job], parts: Parts, what: str, tell: Tell) -> None:
    """Bring the answers of all `jobs` into `parts`, those that are not there yet; in any order, as they end."""
    missing = {job.key: job for job in jobs if job.key not in parts}
    total, tokens = len({job.key for job in jobs}), 0
    waiting = deque(missing.values())
    left, queue = len(missing), 2 * engine.scheduler.limits.max_batch_size  # no pass waits for the host to add
    running = 0
    tell(what, total - left, total, tokens)
    try:
        while waiting or not engine.idle:
            while waiting and running < queue:
                job = waiting.popleft()
                engine.add(job.ids, request_id=job.key, **job.sampling)
                running += 1
            for event in engine.step():
                tokens += len(event.token_ids)
                if event.result is not None:
                    running, left = running - 1, left - 1
                    parts.add(event.request_id, event.result.token_ids, event.result.finish_reason == "stop")
            tell(what, total - left, total, tokens)
    finally:
        engine.abort_all()  # none is left unless something failed or the user interrupts


def write_questions(
    engine: Engine, tokenizer: Tokenizer, count: int, seed: int, chooser: Chooser, parts: Parts, tell: Tell
) -> None:
    """Let the target write `count` new questions: after an empty user's turn the next words are a user's.

    Draw n is the same whatever was drawn before. Stops after four times as many draws; RunError where none is usable.
    """
    prefix, special = question_prefix(tokenizer), tokenizer.special_ids
    drawn, kept = 0, 0
    while kept < count and drawn < 4 * count:
        more = range(drawn, min(4 * count, drawn + (count - kept) * 5 // 4 + 4))  # some do not end, some come twice
        jobs = [job(engine, prefix, QUESTION_TOKENS, seed_of(SELF, seed, n), **QUESTION_SAMPLING) for n in more]
        answer(engine, jobs, parts, "questions", tell)
        for ids, ended in ((parts[j.key].ids, parts[j.key].ended) for j in jobs):
            usable = ended and special.isdisjoint(ids[:-1])
            text = tokenizer.decode(ids[:-1]) if usable else ""
            kept += kept < count and chooser.take(SELF, Prompt(text=text))
        drawn = more.stop
    if not kept:
        raise RunError(f"the target wrote no usable question in {drawn} draws: is its chat template the right one?")
    if kept < count:
        log.warning("the target wrote %d usable questions of %d in %d draws", kept, count, drawn)


def question_prefix(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids up to where a user's first words go. Raises UnsupportedError without a chat template that shows it."""
    if tokenizer.chat_template is None:
        raise UnsupportedError(f"the set {SELF}: the tokenizer in {tokenizer.folder} has no chat template")
    text = render_text(tokenizer, PLACE)
    if text.count(PLACE) != 1 or text.startswith(PLACE):
        raise UnsupportedError(
            f"the set {SELF}: the chat template of {tokenizer.folder} marks no beginning of a user's turn"
        )
    return tuple(tokenizer.encode(text[: text.index(PLACE)], add_special_tokens=False))
