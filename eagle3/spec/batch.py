"""What the host hands to a step: prompt chunks, or generations, as tensors. All else is on the device, by slot."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from eagle3.kv.meta import PromptMeta
from eagle3.spec.logprobs import Logprobs


@dataclass(frozen=True)
class Sampling:
    """How each of R rows draws its token."""

    temperature: Tensor  # [R] f32, 0: greedy
    top_k: Tensor  # [R] i32, 0: off
    top_p: Tensor  # [R] f32, 1: off
    min_p: Tensor  # [R] f32, 0: off
    seed: Tensor  # [R] i64

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The fields in order."""
        return self.temperature, self.top_k, self.top_p, self.min_p, self.seed

    def map(self, rows: Callable[[Tensor], Tensor]) -> "Sampling":
        """The same change of rows made to every field."""
        return Sampling(*map(rows, self.tensors()))


@dataclass(frozen=True)
class Draws:
    """What the host knows of a batch's sampling, so that work that no row asks for is left out."""

    greedy: bool  # every row takes the argmax
    filtered: bool  # some row has top-k, top-p or min-p
    least: bool = False  # some answer must not end yet
    penalised: bool = False  # some row has a penalty
    logprobs: int | None = None  # how many of the best beside a token's own log-probability; None: nobody asks

    @property
    def adjusted(self) -> bool:
        """Some row's logits are not drawn from as they are."""
        return self.least or self.penalised

    @property
    def usual(self) -> bool:
        """Tokens from the target's logits as they are, and nothing else."""
        return not self.adjusted and self.logprobs is None


@dataclass(frozen=True)
class Asked:
    """What C requests, whose chunks have T rows, ask of their logits; see `ops.adjust.Terms`."""

    free: Tensor  # [C] i64
    stops: Tensor  # [C, E] i64, -1 past the end
    penalties: Tensor  # [C, 3] f32: repetition, frequency, presence
    slots: Tensor  # [T] i64, each row's
    written: Tensor  # [T] bool, the row's token is of the answer, which is read anew


@dataclass(frozen=True)
class Contexts:
    """C prompt chunks, T rows. `metas` has one entry a page table: the target's first, the head's last."""

    ids: Tensor  # [T] i64
    following: Tensor  # [T] i64, the prompt token after each row's own; 0 where a prompt ends
    positions: Tensor  # [T] i64
    metas: tuple[PromptMeta, ...]
    predict: Tensor  # [C] i64, the last row of each chunk
    slots: Tensor  # [C] i64
    last: Tensor  # [C] bool, the chunk ends its prompt
    given: Tensor  # [C] i64, the next token where it is known (a preempted request's own), -1: draw it
    sampling: Sampling  # [C]
    draws: Draws
    ending: bool  # some chunk ends its prompt; known to the host, so that a tree is grown only where one is wanted
    asked: Asked | None = None  # None: nobody wants other logits than the target's


@dataclass(frozen=True)
class Generations:
    """G requests that emit. Their trees, lengths and sampling parameters are read from their slots."""

    slots: Tensor  # [G] i64, the dummy slot in padding rows
    tables: tuple[Tensor, ...]  # each [G, M] i32: the target's first, the head's last
    draws: Draws


@dataclass(frozen=True)
class Accepted:
    """What a pass emits."""

    tokens: Tensor  # [B, P] i64, the bonus last, 0 past the end
    counts: Tensor  # [B] i64, the bonus included; 0: unfinished prompt, padding
    nodes: Tensor  # [B, D] i64, accepted nodes of the tree, -1 past the end
    logprobs: Logprobs | None = None  # [B, P] of the tokens, if anybody asks; past the end, anything
