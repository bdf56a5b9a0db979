"""Generations as CUDA graphs: one for each number of requests and kind of draw, all through the real step."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagle3.engine.prepare import Preparer, draws, slot
from eagle3.engine.request import Request
from eagle3.engine.runner import Runner, on
from eagle3.spec.batch import Accepted, Draws, Generations
from eagle3.spec.worker import Worker

GREEDY, SAMPLED, FILTERED = Draws(True, False), Draws(False, False), Draws(False, True)


@dataclass(frozen=True)
class Captured:
    """A graph, where its results lie, and what it cost."""

    graph: torch.cuda.CUDAGraph
    out: Accepted
    compile_s: float  # first eager run: kernels are compiled and loaded
    capture_s: float
    bytes: int  # device memory that the graph took


class GraphRunner(Runner):
    """Replays a graph for the generations; requests are padded to the next bucket with the dummy slot and page 0.

    All that a graph reads of the host is one staging tensor: a row a request, its slot and its block tables.
    """

    def __init__(
        self,
        worker: Worker,
        preparer: Preparer,
        buckets: Sequence[int],
        pools: int,
        width: int,
        *,
        capture: bool = True,
    ) -> None:
        """`width` is M, pages at a request's longest; `capture` False runs the same padded buckets eagerly."""
        super().__init__(worker, preparer)
        self.buckets = tuple(sorted(buckets))
        self.pools, self.width, self.capture = pools, width, capture
        columns = 1 + pools * width
        self._stage = torch.zeros(self.buckets[-1], columns, dtype=torch.int32, device=preparer.device)
        self._graphs: dict[tuple[int, Draws], Captured] = {}
        self._memory = torch.cuda.graph_pool_handle() if capture else None

    def generations(self, requests: Sequence[Request]) -> Accepted:
        """Replay the graph of the requests' bucket, captured now if it is not yet."""
        kind, count = draws(requests), len(requests)
        bucket = next(b for b in self.buckets if b >= count)
        rows = torch.zeros(bucket, self._stage.shape[1], dtype=torch.int32, pin_memory=True)
        table = rows.numpy()
        table[count:, 0] = self.worker.slots.dummy
        for i, request in enumerate(requests):
            table[i, 0] = slot(request)
            for pool, pages in enumerate(request.pages):
                start = 1 + pool * self.width
                table[i, start : start + len(pages)] = pages
        if not self.capture:
            self._stage[:bucket].copy_(rows, non_blocking=True)
            return first(self._pass(bucket, kind), count)
        captured = self.captured(bucket, kind)
        self._stage[:bucket].copy_(rows, non_blocking=True)
        captured.graph.replay()
        return first(captured.out, count)

    @torch.inference_mode()
    def captured(self, bucket: int, kind: Draws) -> Captured:
        """The graph of a bucket and kind; captured on first use."""
        if (bucket, kind) not in self._graphs:
            with on(self.preparer.device):
                self._graphs[bucket, kind] = self._capture(bucket, kind)
        return self._graphs[bucket, kind]

    def _capture(self, bucket: int, kind: Draws) -> Captured:
        self._stage.zero_()
        self._stage[:, 0] = self.worker.slots.dummy
        torch.cuda.synchronize()
        started, free = time.perf_counter(), torch.cuda.mem_get_info()[0]
        self._pass(bucket, kind)
        torch.cuda.synchronize()
        compiled = time.perf_counter()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            out = self._pass(bucket, kind)
        torch.cuda.synchronize()
        done, left = time.perf_counter(), torch.cuda.mem_get_info()[0]
        return Captured(graph, out, compiled - started, done - compiled, free - left)

    def _pass(self, bucket: int, kind: Draws) -> Accepted:
        stage = self._stage[:bucket]
        tables = (stage[:, 1 + i * self.width : 1 + (i + 1) * self.width].contiguous() for i in range(self.pools))
        return self.worker.generations(Generations(stage[:, 0].long(), tuple(tables), kind))


def first(accepted: Accepted, count: int) -> Accepted:
    """The rows of the requests that are real."""
    return Accepted(accepted.tokens[:count], accepted.counts[:count], accepted.nodes[:count])


def buckets(max_batch_size: int) -> list[int]:
    """Powers of two, and the largest batch itself."""
    sizes = [1 << i for i in range(max_batch_size.bit_length())]
    return sorted({*(s for s in sizes if s <= max_batch_size), max_batch_size})
