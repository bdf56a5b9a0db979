"""Runs a planned step on the device, and brings back what it emitted when it is asked for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.engine.prepare import Preparer
from eagle3.engine.request import Request
from eagle3.engine.scheduler import Chunk, Plan
from eagle3.errors import CapacityError
from eagle3.spec.batch import Accepted
from eagle3.spec.worker import Worker


@dataclass(frozen=True)
class Output:
    """What a step's two passes emitted, on its way to the host."""

    contexts: tuple[Tensor, Tensor] | None  # tokens [C, P], counts [C]
    generations: tuple[Tensor, Tensor] | None  # tokens [G, P], counts [G]
    arrived: torch.cuda.Event | None = None  # None: it is there

    def lists(self) -> tuple[list[list[int]], list[list[int]], list[int]]:
        """Tokens of the chunks, tokens and counts of the generations; waits for the device if it has to."""
        if self.arrived is not None:
            self.arrived.synchronize()
        prompts = self.contexts[0].tolist() if self.contexts else []
        rows, counts = (t.tolist() for t in self.generations) if self.generations else ([], [])
        return prompts, rows, counts


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
        return self.worker.contexts(self.preparer.contexts(chunks))

    def generations(self, requests: Sequence[Request]) -> Accepted:
        """The pass of requests that generate, at least one."""
        return self.worker.generations(self.preparer.generations(requests))

    def _read(self, accepted: Accepted) -> tuple[Tensor, Tensor]:
        """Start the way back; from a GPU into pinned memory, which later steps do not touch."""
        if self.preparer.device.type == "cpu":
            return accepted.tokens, accepted.counts
        return accepted.tokens.to("cpu", non_blocking=True), accepted.counts.to("cpu", non_blocking=True)
