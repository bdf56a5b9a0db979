"""Passes as CUDA graphs."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from eagle3.spec.batch import Accepted
from eagle3.spec.logprobs import Logprobs


@dataclass(frozen=True)
class Captured:
    """A graph, where its results lie, and what it cost."""

    graph: torch.cuda.CUDAGraph
    out: Accepted
    compile_s: float  # first eager run: kernels are compiled and loaded
    capture_s: float
    bytes: int  # device memory that the graph took


class Recorder:
    """Makes graphs that share their memory, as they never run at once."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Accepted]) -> Captured:
        """Run a pass eagerly, then capture it on the current GPU. What it reads of the host must lie there already."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # as capturing does, which would else be counted as the graph's
        started, free = time.perf_counter(), torch.cuda.mem_get_info()[0]
        run()
        torch.cuda.synchronize()
        compiled = time.perf_counter()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            out = run()
        torch.cuda.synchronize()
        done, left = time.perf_counter(), torch.cuda.mem_get_info()[0]
        return Captured(graph, out, compiled - started, done - compiled, free - left)


def first(accepted: Accepted, count: int) -> Accepted:
    """The rows of the requests that are real."""
    told = accepted.logprobs and Logprobs(*(t[:count] for t in accepted.logprobs))
    return Accepted(accepted.tokens[:count], accepted.counts[:count], accepted.nodes[:count], told)
