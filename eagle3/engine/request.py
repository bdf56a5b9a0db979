"""A request: the one mutable record of the host."""

import time
from dataclasses import dataclass, field

from eagle3.config.schema import SamplingConfig
from eagle3.engine.finish import FinishReason


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

    @classmethod
    def resolve(cls, cfg: SamplingConfig, model_ends: frozenset[int]) -> "SamplingParams":
        """The parameters of a `SamplingConfig` that has passed its rules."""
        ends = frozenset(cfg.stop_token_ids) | (frozenset() if cfg.ignore_eos else model_ends)
        return cls(cfg.max_new_tokens, cfg.temperature, cfg.top_k or 0, cfg.top_p, cfg.min_p, cfg.seed, ends)

    @property
    def greedy(self) -> bool:
        """Always the most probable token."""
        return self.temperature == 0

    @property
    def filtered(self) -> bool:
        """Draws from less than the whole vocabulary."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


@dataclass(eq=False)
class Request:
    """`tokens` grows from the prompt on. A running request has a slot and pages; a waiting one has neither."""

    id: str
    tokens: list[int]
    sampling: SamplingParams
    prompt_len: int
    limit: int  # the most tokens it may emit, by max_new_tokens and max_seq_len
    slot: int | None = None
    pages: list[list[int]] = field(default_factory=list)  # one list a page table
    prefill: int = 0  # tokens to compute before it generates (again)
    computed: int = 0  # of them, how many are in a step that has been handed to the device
    promised: int = 0  # tokens that steps in flight will surely emit
    preemptions: int = 0
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
