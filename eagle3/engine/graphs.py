"""Generations as CUDA graphs: one for each number of requests and kind of draw, all through the real step."""

from collections.abc import Sequence

import torch

from eagle3.engine.prepare import Preparer, draws, slot
from eagle3.engine.prompts import PromptPasses
from eagle3.engine.recording import Captured, Recorder, first
from eagle3.engine.request import Request
from eagle3.engine.runner import Runner, on
from eagle3.engine.scheduler import Chunk
from eagle3.engine.staging import PassSize
from eagle3.spec.batch import Accepted, Draws, Generations
from eagle3.spec.worker import Worker

GREEDY, SAMPLED, FILTERED = Draws(True, False), Draws(False, False), Draws(False, True)


class GraphRunner(Runner):
    """Replays a graph for the generations; requests are padded to the next bucket with the dummy slot and page 0.

    All that a graph reads of the host is one staging tensor: a row a request, its slot and its block tables. Prompt
    passes replay graphs of their own, up to the largest of `prompt_rows`.
    """

    def __init__(
        self,
        worker: Worker,
        preparer: Preparer,
        buckets: Sequence[int],
        pools: int,
        width: int,
        *,
        prompt_rows: Sequence[int] = (),
        capture: bool = True,
    ) -> None:
        """`width` is M, pages at a request's longest; `capture` False runs the same padded buckets eagerly.

        Without `prompt_rows` prompt passes are eager, of the size that they have.
        """
        super().__init__(worker, preparer)
        self.buckets = tuple(sorted(buckets))
        self.pools, self.width, self.capture = pools, width, capture
        columns = 1 + pools * width
        self._stage = torch.zeros(self.buckets[-1], columns, dtype=torch.int32, device=preparer.device)
        self._graphs: dict[tuple[int, Draws], Captured] = {}
        self._recorder = Recorder() if capture else None
        self.prompts = None
        if prompt_rows:
            sizes = prompt_rows, self.buckets[-1], pools, width
            self.prompts = PromptPasses(worker, preparer, *sizes, self._recorder)

    def contexts(self, chunks: Sequence[Chunk]) -> Accepted:
        """Replay the graph of the chunks' size, captured now if it is not yet; eagerly where they exceed all."""
        if self.prompts is None or not self.prompts.holds(chunks):
            return super().contexts(chunks)
        return self.prompts.run(chunks)

    def generations(self, requests: Sequence[Request]) -> Accepted:
        """Replay the graph of the requests' bucket, captured now if it is not yet."""
        kind, count = draws(requests), len(requests)
        bucket = next(b for b in self.buckets if b >= count)
        rows = torch.zeros(bucket, self._stage.shape[1], dtype=torch.int32, pin_memory=self.preparer.pins)
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
        self.replay(captured)
        return first(captured.out, count)

    def replay(self, captured: Captured) -> None:
        """Launch a graph over what is staged."""
        captured.graph.replay()

    def alone(self, count: int) -> "GraphRunner":
        """A runner of the same worker, eager prompts, the one bucket that `count` requests take, graphs of its own."""
        bucket = next(b for b in self.buckets if b >= count)
        return GraphRunner(self.worker, self.preparer, [bucket], self.pools, self.width, capture=self.capture)

    @property
    def graph_bytes(self) -> int:
        """Device memory that all graphs took so far."""
        own = sum(captured.bytes for captured in self._graphs.values())
        return own + (self.prompts.graph_bytes if self.prompts else 0)

    @torch.inference_mode()
    def captured(self, bucket: int, kind: Draws) -> Captured:
        """The graph of a bucket and kind; captured on first use."""
        if (bucket, kind) not in self._graphs:
            assert self._recorder is not None
            with on(self.preparer.device):
                self._stage.zero_()
                self._stage[:, 0] = self.worker.slots.dummy
                self._graphs[bucket, kind] = self._recorder.record(lambda: self._pass(bucket, kind))
        return self._graphs[bucket, kind]

    def captured_prompts(self, size: PassSize) -> Captured:
        """The graph of a size of prompt passes; captured on first use."""
        assert self.prompts is not None
        with on(self.preparer.device):
            return self.prompts.captured(size)

    def _pass(self, bucket: int, kind: Draws) -> Accepted:
        stage = self._stage[:bucket]
        tables = (stage[:, 1 + i * self.width : 1 + (i + 1) * self.width].contiguous() for i in range(self.pools))
        return self.worker.generations(Generations(stage[:, 0].long(), tuple(tables), kind))


def buckets(max_batch_size: int) -> list[int]:
    """Powers of two, and the largest batch itself."""
    sizes = [1 << i for i in range(max_batch_size.bit_length())]
    return sorted({*(s for s in sizes if s <= max_batch_size), max_batch_size})
