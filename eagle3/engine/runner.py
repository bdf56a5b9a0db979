"""Runs a planned step on the device, and brings back what it emitted when it is asked for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.engine.logprobs import Told
from eagle3.engine.prepare import Preparer
from eagle3.engine.request import Request
from eagle3.engine.scheduler import Chunk, Plan
from eagle3.errors import CapacityError
from eagle3.spec.batch import Accepted
from eagle3.spec.logprobs import Logprobs
from eagle3.spec.worker import Worker


@dataclass(frozen=True)
class Emitted:
    """What a pass emitted: tokens [B, P], counts [B], and log-probabilities if asked for."""

    tokens: Tensor
    counts: Tensor
    logprobs: Logprobs | None


@dataclass(frozen=True)
class Output:
    """What a step's two passes emitted, on its way to the host."""

    contexts: Emitted | None
    generations: Emitted | None
    arrived: torch.cuda.Event | None = None  # None: it is there

    def lists(self) -> tuple[list[list[int]], list[list[int]], list[int]]:
        """Tokens of the chunks, tokens and counts of the generations; waits for the device if it has to."""
        if self.arrived is not None:
            self.arrived.synchronize()
        prompts = self.contexts.tokens.tolist() if self.contexts else []
        if self.generations is None:
            return prompts, [], []
        return prompts, self.generations.tokens.tolist(), self.generations.counts.tolist()

    def told(self) -> tuple[Told | None, Told | None]:
        """The chunks' and the generations' log-probabilities, if asked for; after `lists`."""
        return _told(self.contexts), _told(self.generations)


def _told(emitted: Emitted | None) -> Told | None:
    return None if emitted is None or emitted.logprobs is None else Told(emitted.logprobs)


SERVING = (
    "runtime.max_seq_len, runtime.max_batch_size, runtime.max_num_tokens, kv.max_tokens, kv.free_gpu_memory_fraction, "
    "runtime.cuda_graph_batch_sizes or runtime.cuda_graph_prompt_rows"
)


@contextmanager
def on(device: torch.device, keys: str = SERVING) -> Iterator[None]:
    """Make a GPU the current one: events and graphs belong to it.

    Its memory running out is a `CapacityError` that says to lower `keys`.
    """
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    except RuntimeError as error:
        if not ran_out(error):
            raise
        first = str(error).partition("\n")[0]
        raise CapacityError(f"memory ran out: lower {keys} ({first})") from error


def ran_out(error: BaseException | None) -> bool:
    """Whether memory was short, be it that ending a graph's capture then failed as well."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        if "DefaultCPUAllocator" in str(error):  # a CPU has no error of its own for it
            return True
        error = error.__context__
    return error is not None


class Runner:
    """Eager: slots to rest, then the prompt chunks' pass, then the generations' pass."""

    def __init__(self, worker: Worker, preparer: Preparer) -> None:
        self.worker = worker
        self.preparer = preparer

    @torch.inference_mode()
    def run(self, plan: Plan) -> Output:
        """Hand a plan to the device; nothing is waited for."""
        with on(self.preparer.device):
            return self._run(plan)

    def _run(self, plan: Plan) -> Output:
        prompts = rows = None
        if plan.restore:
            self.worker.slots.restore(self.preparer.ids(plan.restore))
        if plan.chunks:
            prompts = self._read(self.contexts(plan.chunks))
        if plan.generations:
            rows = self._read(self.generations(plan.generations))
        arrived = None
        if self.preparer.device.type == "cuda":
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        return Output(prompts, rows, arrived)

    def contexts(self, chunks: Sequence[Chunk]) -> Accepted:
        """The pass of prompt chunks, at least one."""
        batch = self.preparer.contexts(chunks)
        if batch.draws.penalised:
            self.worker.slots.adjust.keep_counts()
        return self.worker.contexts(batch)

    def generations(self, requests: Sequence[Request]) -> Accepted:
        """The pass of requests that generate, at least one."""
        return self.worker.generations(self.preparer.generations(requests))

    def _read(self, accepted: Accepted) -> Emitted:
        """Start the way back; from a GPU into pinned memory, which later steps do not touch."""
        if self.preparer.device.type == "cpu":
            return Emitted(accepted.tokens, accepted.counts, accepted.logprobs)
        told = accepted.logprobs and Logprobs(*(t.to("cpu", non_blocking=True) for t in accepted.logprobs))
        tokens, counts = (t.to("cpu", non_blocking=True) for t in (accepted.tokens, accepted.counts))
        return Emitted(tokens, counts, told)
