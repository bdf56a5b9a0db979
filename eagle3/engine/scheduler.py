"""Who runs in a step, with which slot and pages; and what came back, one step late."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3.config.shape import DraftShape
from eagle3.engine.finish import FinishReason, keep
from eagle3.engine.logprobs import Told
from eagle3.engine.request import Request
from eagle3.errors import CapacityError
from eagle3.kv.pages import Pages


@dataclass(frozen=True)
class Limits:
    """The engine's sizes."""

    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    prompt_chunk: int


@dataclass(frozen=True)
class Chunk:
    """Tokens start…end of a request's prompt."""

    request: Request
    start: int
    end: int
    last: bool  # ends the prompt
    emits: bool  # and its token is new


@dataclass(frozen=True)
class Plan:
    """One step: slots to bring to rest first, then prompt chunks, then generations."""

    restore: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    generations: tuple[Request, ...]

    def __bool__(self) -> bool:
        return bool(self.chunks or self.generations)


@dataclass(frozen=True)
class Emission:
    """What a request got from a step: of `accepted` drafts and a bonus, what it keeps."""

    request: Request
    tokens: list[int]
    accepted: int | None  # None: nothing was verified


class Scheduler:
    """First come, first served; who came last gives way when pages run out. `pools` has one entry a page table."""

    def __init__(self, limits: Limits, shape: DraftShape, pools: Sequence[Pages]) -> None:
        self.limits = limits
        self.shape = shape
        self.pools = tuple(pools)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # by time of admission
        self._slots = deque(range(limits.max_batch_size))
        self._restore: list[int] = []

    @property
    def free_slots(self) -> int:
        """Slots that no request holds."""
        return len(self._slots)

    def add(self, request: Request) -> None:
        """Queue a request. Raises `CapacityError` if no empty engine could ever finish it."""
        if request.prompt_len + 1 > self.limits.max_seq_len:
            raise CapacityError(
                f"request {request.id}: a prompt of {request.prompt_len} tokens and one more do not fit in "
                f"runtime.max_seq_len={self.limits.max_seq_len}"
            )
        need = self.shape.entries(request.prompt_len + request.limit)
        for pool in self.pools:
            if pool.needed(need) > pool.total:
                raise CapacityError(
                    f"request {request.id}: {request.prompt_len} prompt tokens and up to {request.limit} new ones need "
                    f"{need} KV entries, the pool holds {pool.total * pool.page}: raise kv.max_tokens or lower "
                    "sampling.max_new_tokens"
                )
        request.pages = [[] for _ in self.pools]
        self.waiting.append(request)

    def schedule(self) -> Plan:
        """Choose the next step: all generations, then prompt chunks in what is left of max_num_tokens."""
        generations, crowded = self._generations()
        budget = self.limits.max_num_tokens - len(generations) * self.shape.nodes
        chunks = self._chunks(budget)
        if not crowded:
            chunks += self._admissions(budget - sum(c.end - c.start for c in chunks))
        if not chunks and not generations:
            return Plan((), (), ())  # slots that were left come to rest with the next step that runs
        restore, self._restore = tuple(self._restore), []
        return Plan(restore, tuple(chunks), tuple(generations))

    def commit(
        self,
        plan: Plan,
        prompt_tokens: list[list[int]],
        tokens: list[list[int]],
        counts: list[int],
        told: tuple[Told | None, Told | None] = (None, None),
    ) -> list[Emission]:
        """Hand out what a step emitted: a row a chunk, a row and a count a generation. Who left since gets nothing.

        `told` has the log-probabilities of both, where anybody asks.
        """
        emissions = []
        for i, (chunk, row) in enumerate(zip(plan.chunks, prompt_tokens, strict=True)):
            chunk.request.promised -= chunk.emits
            if chunk.emits and chunk.request.finish_reason is None:
                kept = self._extend(chunk.request, row[:1], told[0], i)
                emissions.append(Emission(chunk.request, kept, None))
        for i, (request, row, count) in enumerate(zip(plan.generations, tokens, counts, strict=True)):
            request.promised -= 1
            if request.finish_reason is None:
                accepted = count - 1 if self.shape.depth > 0 else None
                if accepted is not None:
                    request.accepted_per_step.append(accepted)
                emissions.append(Emission(request, self._extend(request, row[:count], told[1], i), accepted))
        return emissions

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request; its slot and pages go to work that is handed over later."""
        request.finish_reason, request.finished = reason, time.perf_counter()
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self._leave(request)

    def _extend(self, request: Request, new: list[int], told: Told | None, row: int) -> list[int]:
        kept, reason = keep(new, request.emitted, request.limit, request.sampling.ends, request.completes)
        request.tokens += kept
        if request.sampling.logprobs is not None:
            assert told is not None, "whoever asks is in a pass that tells"
            request.logprobs += told.of(row, kept, request.sampling.logprobs)
        if request.first_token is None:
            request.first_token = time.perf_counter()
        if reason:
            self.finish(request, reason)
        return kept

    def _reserve(self, request: Request, entries: int) -> bool:
        """Pages for so many entries in every pool, or in none."""
        if any(p.needed(entries) - len(own) > p.free for p, own in zip(self.pools, request.pages, strict=True)):
            return False
        return all(p.grow(own, entries) for p, own in zip(self.pools, request.pages, strict=True))

    def _generations(self) -> tuple[list[Request], bool]:
        """All that generate, each with pages for its next step; and whether anyone had to give way."""
        chosen: list[Request] = []
        crowded = False
        for request in list(self.running):
            if request.slot is None or request.in_prompt or request.satisfied:
                continue
            while request.slot is not None and not self._reserve(request, self.shape.entries(len(request.tokens))):
                self._preempt(self.running[-1])  # perhaps itself
                crowded = True
            if request.slot is not None:
                request.promised += 1
                chosen.append(request)
        return chosen, crowded

    def _chunks(self, budget: int) -> list[Chunk]:
        """The next chunk of every running request that is still in its prompt."""
        chunks = []
        for request in self.running:
            if request.in_prompt and budget > 0:
                chunks.append(self._chunk(request, budget))
                budget -= chunks[-1].end - chunks[-1].start
        return chunks

    def _admissions(self, budget: int) -> list[Chunk]:
        """First chunks of waiting requests, in order, as long as a slot and pages for the whole prompt are free."""
        chunks: list[Chunk] = []
        while self.waiting and self._slots and budget > 0:
            request = self.waiting[0]
            if not self._reserve(request, self.shape.entries(len(request.tokens))):
                break
            self.waiting.popleft()
            self.running.append(request)
            request.slot = self._slots.popleft()
            request.prefill = len(request.tokens) - (request.emitted > 0)
            request.computed = 0
            chunks.append(self._chunk(request, budget))
            budget -= chunks[-1].end - chunks[-1].start
        return chunks

    def _chunk(self, request: Request, budget: int) -> Chunk:
        start = request.computed
        request.computed = min(request.prefill, start + min(budget, self.limits.prompt_chunk))
        last = not request.in_prompt
        emits = last and not request.resumed
        request.promised += emits
        return Chunk(request, start, request.computed, last, emits)

    def _preempt(self, request: Request) -> None:
        """Send a request back to the head of the queue; it will compute what it knows anew."""
        self._leave(request)
        request.preemptions += 1
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        assert request.slot is not None
        self.running.remove(request)
        self._slots.append(request.slot)
        self._restore.append(request.slot)
        request.slot = None
        for pool, owned in zip(self.pools, request.pages, strict=True):
            pool.release(owned)
