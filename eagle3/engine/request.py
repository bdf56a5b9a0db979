"""A request: the one mutable record of the host."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3.config.schema import SamplingConfig
from eagle3.engine.finish import FinishReason
from eagle3.engine.logprobs import Logprob
from eagle3.text.answer import AnswerText

# sampling of a request that ends by its length alone
ENDLESS: Mapping[str, Any] = {"ignore_eos": True, "stop_token_ids": [], "stop": None, "min_new_tokens": 0}


@dataclass(frozen=True)
class SamplingParams:
    """How one request draws and when it ends, all defaults resolved."""

    max_new_tokens: int
    temperature: float  # 0: greedy
    top_k: int  # 0: off
    top_p: float
    min_p: float
    seed: int
    ends: frozenset[int]  # tokens that stop it
    stop: tuple[str, ...] = ()  # texts that stop it
    min_new_tokens: int = 0  # before which nothing stops it
    repetition: float = 1.0  # 1: off
    frequency: float = 0.0
    presence: float = 0.0
    logprobs: int | None = None  # how many of the best beside a token's own; None: not even that

    @classmethod
    def resolve(cls, cfg: SamplingConfig, model_ends: frozenset[int]) -> "SamplingParams":
        """The parameters of a `SamplingConfig` that has passed its rules."""
        ends = frozenset(cfg.stop_token_ids) | (frozenset() if cfg.ignore_eos else model_ends)
        return cls(
            max_new_tokens=cfg.max_new_tokens,
            temperature=cfg.temperature,
            top_k=cfg.top_k or 0,
            top_p=cfg.top_p,
            min_p=cfg.min_p,
            seed=cfg.seed,
            ends=ends,
            stop=tuple(cfg.stop or ()),
            min_new_tokens=cfg.min_new_tokens,
            repetition=cfg.repetition_penalty,
            frequency=cfg.frequency_penalty,
            presence=cfg.presence_penalty,
            logprobs=cfg.logprobs,
        )

    @property
    def greedy(self) -> bool:
        """Always the most probable token."""
        return self.temperature == 0

    @property
    def filtered(self) -> bool:
        """Draws from less than the whole vocabulary."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def penalties(self) -> tuple[float, float, float]:
        """Repetition, frequency, presence."""
        return self.repetition, self.frequency, self.presence

    @property
    def penalised(self) -> bool:
        """What was said counts."""
        return self.penalties != (1.0, 0.0, 0.0)


@dataclass(eq=False)
class Request:
    """`tokens` grows from the prompt on. A running request has a slot and pages; a waiting one has neither."""

    id: str
    tokens: list[int]
    sampling: SamplingParams
    prompt_len: int
    limit: int  # the most tokens it may emit, by max_new_tokens and max_seq_len
    text: AnswerText | None = None  # None: there is no tokenizer
    slot: int | None = None
    pages: list[list[int]] = field(default_factory=list)  # one list a page table
    prefill: int = 0  # tokens to compute before it generates (again)
    computed: int = 0  # of them, how many are in a step that has been handed to the device
    promised: int = 0  # tokens that steps in flight will surely emit
    preemptions: int = 0
    logprobs: list[Logprob] = field(default_factory=list)  # of the output, if asked for
    accepted_per_step: list[int] = field(default_factory=list)  # raw accepted drafts of each verification
    finish_reason: FinishReason | None = None
    arrived: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    finished: float | None = None

    @property
    def emitted(self) -> int:
        """Tokens after the prompt."""
        return len(self.tokens) - self.prompt_len

    @property
    def output(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[self.prompt_len :]

    def completes(self, token: int, count: int) -> bool:
        """Take the `count`-th token of the answer into its text; whether it completes a stop string."""
        return self.text is not None and self.text.push(token, counts=count > self.sampling.min_new_tokens)

    @property
    def goes_on(self) -> bool:
        """The next token, as far as the host knows, must not be one that ends the answer."""
        return self.emitted < self.sampling.min_new_tokens and len(self.sampling.ends) > 0

    @property
    def resumed(self) -> bool:
        """It computes its prompt anew after a preemption: the token after it is known and not emitted again."""
        return self.prefill < len(self.tokens)

    @property
    def in_prompt(self) -> bool:
        """Still consuming its prompt: a context, not a generation."""
        return self.computed < self.prefill

    @property
    def satisfied(self) -> bool:
        """What is in flight brings it to its limit, whatever is accepted."""
        return self.emitted + self.promised >= self.limit
