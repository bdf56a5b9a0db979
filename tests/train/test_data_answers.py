"""Questions and answers through an engine that says what it is told to, last asked first."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eagle3.config.schema import SamplingConfig
from eagle3.engine.engine import Engine, Event, Result
from eagle3.errors import ConfigError, RunError, UnsupportedError
from eagle3.text.prompts import Prompt
from eagle3.text.tokenizer import Tokenizer
from eagle3.train.data import DataOptions, make_data
from eagle3.train.data_answers import Job, answer, question_prefix, write_questions
from eagle3.train.data_parts import Parts
from eagle3.train.data_prompts import Chooser, held_out
from eagle3.train.samples import Sample, read_meta, read_samples
from helpers.checkpoints import write_tokenizer

END = 1
Says = Callable[[Sequence[int], dict[str, Any]], list[int]]


class Saying:
    """Stands in for an engine: `says` gives the answer to token ids and sampling; interrupted after `lives` steps."""

    def __init__(self, says: Says, tokenizer: Tokenizer | None = None, max_seq_len: int = 40) -> None:
        self.says, self.tokenizer = says, tokenizer
        self.scheduler = SimpleNamespace(limits=SimpleNamespace(max_seq_len=max_seq_len, max_batch_size=2))
        self.config = SimpleNamespace(sampling=SamplingConfig())
        self.running: list[tuple[str, Sequence[int], dict[str, Any]]] = []
        self.asked: list[str] = []
        self.lives = 10**6

    def add(self, prompt: Sequence[int], *, request_id: str, **sampling: Any) -> None:
        assert sampling["max_new_tokens"] >= 1
        self.running.append((request_id, prompt, sampling))
        self.asked.append(request_id)

    def check_prompt(self, tokens: Sequence[int]) -> None:
        if max(tokens) >= 64:
            raise ConfigError([])

    @property
    def idle(self) -> bool:
        return not self.running

    def step(self) -> list[Event]:
        if self.lives == 0:
            raise KeyboardInterrupt
        self.lives -= 1
        name, prompt, sampling = self.running.pop()
        ids = self.says(prompt, sampling)[: sampling["max_new_tokens"]]
        reason = "stop" if ids[-1] == END else "length"
        result = Result(name, list(prompt), ids, None, cast(Any, reason), None, None, None, None, sampling["seed"])
        return [Event(name, ids, [], None, result)]

    def abort_all(self) -> list[Result]:
        self.running.clear()
        return []

    @property
    def engine(self) -> Engine:
        return cast(Engine, self)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_tokenizer(tmp_path / "tokenizer")
    return Tokenizer(tmp_path / "tokenizer")


def quiet(*told: object) -> None:
    """Progress that nobody sees."""


def echo(prompt: Sequence[int], sampling: dict[str, Any]) -> list[int]:
    return [*prompt, END]


def drawn(texts: list[str], tokenizer: Tokenizer) -> Says:
    """Texts by turn of the seed, whichever is asked first; '$' is the end token, '#' another special one."""
    order: dict[int, int] = {}

    def says(prompt: Sequence[int], sampling: dict[str, Any]) -> list[int]:
        text = texts[order[sampling["seed"]]]
        special = {"$": END, "#": 0}
        return [special.get(sign) if sign in special else tokenizer.encode(sign)[0] for sign in text]  # type: ignore[misc]

    says.order = order  # type: ignore[attr-defined]
    return says


def asks(engine: Saying, tokenizer: Tokenizer, count: int, parts: Parts, held: tuple[Prompt, ...] = ()) -> list[str]:
    """The questions of a run, as texts."""
    from eagle3.train.data_parts import seed_of

    if hasattr(engine.says, "order"):
        engine.says.order.update({seed_of("self", 0, n): n for n in range(4 * count)})
    chooser = Chooser(held_out(held))
    write_questions(engine.engine, tokenizer, count, 0, chooser, parts, quiet)
    return [prompt.text or "" for _, prompt in chooser.chosen]


def test_answers_come_once_and_only_where_missing(tmp_path: Path) -> None:
    engine = Saying(echo)
    jobs = [Job((5, n), {"max_new_tokens": 9, "seed": n}, f"k{n}") for n in (2, 3, 4, 3)]
    seen: list[tuple[int, int]] = []
    with Parts(tmp_path / "a.jsonl") as parts:
        parts.add("k4", [7], False)
        answer(engine.engine, jobs, parts, "x", lambda what, done, total, tokens: seen.append((done, total)))
        assert engine.asked == ["k2", "k3"]
        assert [list(parts[f"k{n}"].ids) for n in (2, 3, 4)] == [[5, 2, END], [5, 3, END], [7]]
    assert (seen[0], seen[-1]) == ((1, 3), (3, 3))


def test_after_a_kill_only_the_rest_is_asked(tmp_path: Path) -> None:
    jobs = [Job((5, n), {"max_new_tokens": 9, "seed": n}, f"k{n}") for n in range(10)]
    first, second = Saying(echo), Saying(echo)
    first.lives = 6
    with Parts(tmp_path / "a.jsonl") as parts, pytest.raises(KeyboardInterrupt):
        answer(first.engine, jobs, parts, "x", quiet)
    assert first.idle, "what was running is aborted"
    with Parts(tmp_path / "a.jsonl") as parts:
        answer(second.engine, jobs, parts, "x", quiet)
        assert all(list(parts[job.key].ids) == [*job.ids, END] for job in jobs)
    assert len(second.asked) == 4


TEXTS = ["why.$", "endless", "$", "  $", "what is it.$", "why.$", "a#b$", "who.$", "where.$", *["when.$"] * 20]


def test_questions_are_those_that_end_and_are_new(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with Parts(tmp_path / "a.jsonl") as parts:
        assert asks(Saying(drawn(TEXTS, tokenizer), tokenizer), tokenizer, 3, parts) == ["why.", "what is it.", "who."]
        held = (Prompt(text="What is it."),)
        told = asks(Saying(drawn(TEXTS, tokenizer), tokenizer), tokenizer, 4, parts, held)
    assert told == ["why.", "who.", "where.", "when."]


def test_a_user_is_played_at_temperature_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    engine, seen = Saying(drawn(TEXTS, tokenizer), tokenizer), []
    real = engine.says

    def says(prompt: Sequence[int], sampling: dict[str, Any]) -> list[int]:
        seen.append((tokenizer.decode(prompt, skip_special_tokens=False), sampling))
        return real(prompt, sampling)

    says.order = real.order  # type: ignore[attr-defined]
    engine.says = says
    with Parts(tmp_path / "a.jsonl") as parts:
        asks(engine, tokenizer, 3, parts)
    assert {prompt for prompt, _ in seen} == {"<user>"}
    assert all((s["temperature"], s["top_p"]) == (1.0, 0.95) for _, s in seen)
    assert len({s["seed"] for _, s in seen}) == len(seen)


def test_questions_go_on_after_a_kill(tmp_path: Path, tokenizer: Tokenizer) -> None:
    first, second = (Saying(drawn(TEXTS, tokenizer), tokenizer) for _ in range(2))
    first.lives = 5
    with Parts(tmp_path / "a.jsonl") as parts, pytest.raises(KeyboardInterrupt):
        asks(first, tokenizer, 3, parts)
    with Parts(tmp_path / "a.jsonl") as parts:
        assert asks(second, tokenizer, 3, parts) == ["why.", "what is it.", "who."]
    with Parts(tmp_path / "b.jsonl") as parts:
        whole = Saying(drawn(TEXTS, tokenizer), tokenizer)
        asks(whole, tokenizer, 3, parts)
    assert len(second.asked) == len(whole.asked) - 5


def test_a_target_that_asks_little_is_told(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with Parts(tmp_path / "a.jsonl") as parts, pytest.raises(RunError, match="no usable question in 12 draws"):
        asks(Saying(drawn(["no end"] * 12, tokenizer), tokenizer), tokenizer, 3, parts)
    with Parts(tmp_path / "b.jsonl") as parts:
        assert asks(Saying(drawn(["why.$"] * 12, tokenizer), tokenizer), tokenizer, 3, parts) == ["why."]
    assert "1 usable questions of 3 in 12 draws" in caplog.text


def test_a_template_must_show_where_a_user_begins(tokenizer: Tokenizer) -> None:
    for template in ("{{ messages[0].content }}", "<user>", "<{{ messages[0].content }}{{ messages[0].content }}"):
        tokenizer.hf.chat_template = template
        with pytest.raises(UnsupportedError, match="marks no beginning"):
            question_prefix(tokenizer)
    tokenizer.hf.chat_template = None
    with pytest.raises(UnsupportedError, match="no chat template"):
        question_prefix(tokenizer)


def test_a_prompts_answers_stay_together(tmp_path: Path) -> None:
    def says(prompt: Sequence[int], sampling: dict[str, Any]) -> list[int]:
        return [2 + sampling["seed"] % 60, END]

    prompts = tuple(Prompt(ids=(a, b)) for a in range(3, 23) for b in range(3, 8))
    options = DataOptions((("ids", prompts),), temperatures=(0.0, 1.0, 1.0), eval_share=0.2)
    engine = Saying(says)
    meta = make_data(engine.engine, {"checkpoint": "x"}, options, tmp_path / "out", quiet, quiet)
    train, held = (read_samples(tmp_path / "out", split) for split in ("train", "eval"))  # type: ignore[arg-type]
    asked = [{sample.ids[:2] for sample in samples} for samples in (train, held)]
    assert not asked[0] & asked[1]
    assert asked[0] | asked[1] == {prompt.ids for prompt in prompts}
    assert len(train) == 3 * len(asked[0])
    assert 8 <= len(asked[1]) <= 35
    assert len({sample.ids for sample in train}) > 2 * len(asked[0]), "each answer is a draw of its own"
    assert {sample.answers for sample in train} == {((2, 4),)}
    assert meta == read_meta(tmp_path / "out")
    assert meta["prompts"] == {"train": len(asked[0]), "eval": len(asked[1])}
    assert meta["train"] == {"samples": len(train), "tokens": 4 * len(train), "answer_tokens": 2 * len(train)}
    assert meta["target"] == {"checkpoint": "x"}


def test_more_prompts_add_to_what_is_there(tmp_path: Path) -> None:
    def made(count: int, **changed: Any) -> tuple[Saying, list[Sample]]:
        engine, told = Saying(echo), []
        options = DataOptions((("ids", tuple(Prompt(ids=(n,)) for n in range(3, 3 + count))),), **changed)
        make_data(engine.engine, {"checkpoint": "x"}, options, tmp_path / "out", told.append, quiet)
        assert len(told) == 1
        return engine, read_samples(tmp_path / "out", "train") + read_samples(tmp_path / "out", "eval")

    few, some = made(10)
    more, all_ = made(15)
    assert (len(few.asked), len(more.asked)) == (20, 10)
    assert len(all_) == 30
    assert set(some) <= set(all_)
    for changed in ({"max_new_tokens": 7}, {"seed": 1}, {"temperatures": (0.5,)}):
        assert made(10, **changed)[0].asked, "another answer is wanted"


def test_long_prompts_are_left_out_and_counted(tmp_path: Path) -> None:
    prompts = tuple(Prompt(ids=(*range(2, 2 + n),)) for n in (38, 39, 40, 5))
    options = DataOptions((("ids", prompts),), eval_share=0, temperatures=(0.0,))
    meta = make_data(Saying(echo).engine, {"checkpoint": "x"}, options, tmp_path / "out", quiet, quiet)
    assert (meta["sources"]["ids"]["too_long"], meta["sources"]["ids"]["kept"]) == (1, 3)
    assert [sample.written for sample in read_samples(tmp_path / "out", "train")] == [2, 1, 6]
    assert meta["answers"] == {"ended": 1, "all": 3}


def test_where_none_is_left_it_says_why(tmp_path: Path) -> None:
    options = DataOptions((("ids", (Prompt(ids=(5,) * 40),)),))
    with pytest.raises(ConfigError, match="'too_long': 1"):
        make_data(Saying(echo).engine, {"checkpoint": "x"}, options, tmp_path / "out", quiet, quiet)
    assert not (tmp_path / "out" / "meta.json").exists()


def test_own_questions_are_answered_through_the_template(tmp_path: Path, tokenizer: Tokenizer) -> None:
    from eagle3.train.data_parts import seed_of

    ask = drawn(["why.$", "who.$", "what.$", "when.$"] * 2, tokenizer)
    ask.order.update({seed_of("self", 0, n): n for n in range(8)})  # type: ignore[attr-defined]
    prefix = question_prefix(tokenizer)

    def says(prompt: Sequence[int], sampling: dict[str, Any]) -> list[int]:
        return ask(prompt, sampling) if tuple(prompt) == prefix else [*prompt[-3:], END]

    options = DataOptions((("given", (Prompt(text="why."),)),), questions=2, temperatures=(0.0,))
    engine = Saying(says, tokenizer, max_seq_len=60)
    meta = make_data(engine.engine, {"checkpoint": "x"}, options, tmp_path / "out", quiet, quiet)
    assert meta["sources"]["given"]["kept"] == 1
    assert (meta["sources"]["self"]["kept"], meta["sources"]["self"]["duplicate"]) == (2, 1)
    every = read_samples(tmp_path / "out", "train") + read_samples(tmp_path / "out", "eval")
    asked = {tokenizer.decode(sample.ids[: sample.answers[0][0]]) for sample in every}
    assert asked == {f"<user>{text}<assistant>" for text in ("why.", "who.", "what.")}
    assert engine.tokenizer is None, "no text is made on the way"
