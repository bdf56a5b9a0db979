"""Prompt passes as CUDA graphs: one for each of a few sizes, to which a pass is padded."""

from collections.abc import Sequence

import torch

from eagle3.engine.prepare import Preparer, chunk_draws
from eagle3.engine.recording import Captured, Recorder, first
from eagle3.engine.scheduler import Chunk, Limits
from eagle3.engine.staging import PassSize, occupy, pad
from eagle3.spec.batch import Accepted, Contexts
from eagle3.spec.worker import Worker


class PromptPasses:
    """Runs prompt chunks in passes of fixed rows, for one request or for as many as there can be.

    A request alone is what mostly comes, and spares the draft loop of the others. Where no prompt ends there is no
    such loop, and the one size serves all.
    """

    def __init__(
        self,
        worker: Worker,
        preparer: Preparer,
        rows: Sequence[int],
        requests: int,
        pools: int,
        width: int,
        recorder: Recorder | None,
    ) -> None:
        """`rows` are the sizes, `width` is M, pages at a request's longest; no recorder: padded, but eager."""
        self.worker, self.preparer = worker, preparer
        self.rows = tuple(sorted(rows))
        self.requests, self.pools, self.width = requests, pools, width
        self._recorder = recorder
        self._lists = Preparer(preparer.page, preparer.beyond, torch.device("cpu"))
        self._graphs: dict[PassSize, Captured] = {}
        longest = max(size.nbytes for size in self.sizes())
        self._stage = torch.zeros(longest, dtype=torch.uint8, device=preparer.device)  # read by all graphs

    def holds(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a pass over the chunks fits the largest size and asks for nothing unusual."""
        return _rows(chunks) <= self.rows[-1] and chunk_draws(chunks).usual

    def run(self, chunks: Sequence[Chunk]) -> Accepted:
        """The pass of chunks that fit; replays their size's graph, captured now if it is not yet."""
        size = self._size(_rows(chunks), len(chunks), any(c.last for c in chunks))
        host = torch.zeros(size.nbytes, dtype=torch.uint8, pin_memory=self.preparer.pins)
        pad(self._lists.contexts(chunks), size.view(host), self.worker.slots.dummy, self.preparer.page)
        if self._recorder is None:
            return first(self.worker.contexts(self._staged(size, host)), len(chunks))
        captured = self.captured(size)
        self._staged(size, host)
        captured.graph.replay()
        return first(captured.out, len(chunks))

    def sizes(self) -> list[PassSize]:
        """All that can come, the largest first: what it leaves of the graphs' memory is enough for all others."""
        kinds = [(count, ending) for count in (1, self.requests) for ending in (True, False)]
        return sorted({self._size(rows, *kind) for rows in self.rows for kind in kinds}, reverse=True)

    @property
    def graph_bytes(self) -> int:
        """Device memory that the graphs took so far."""
        return sum(captured.bytes for captured in self._graphs.values())

    @torch.inference_mode()
    def captured(self, size: PassSize) -> Captured:
        """The graph of a size; captured on first use, on the current GPU. What is staged is lost."""
        if size not in self._graphs:
            assert self._recorder is not None
            batch = size.view(self._stage)
            occupy(batch, self.worker.slots.dummy, self.preparer.page)
            self._graphs[size] = self._recorder.record(lambda: self.worker.contexts(batch))
        return self._graphs[size]

    def _size(self, rows: int, count: int, ending: bool) -> PassSize:
        """The smallest size that holds so many rows and requests."""
        held = next(n for n in self.rows if n >= rows)
        requests = 1 if count == 1 and ending else min(self.requests, held)
        return PassSize(held, requests, ending, self.pools, self.width)

    def _staged(self, size: PassSize, host: torch.Tensor) -> Contexts:
        self._stage[: size.nbytes].copy_(host, non_blocking=True)
        return size.view(self._stage)


def _rows(chunks: Sequence[Chunk]) -> int:
    return sum(c.end - c.start for c in chunks)


def most_rows(limits: Limits) -> int:
    """Rows of the largest pass that can come."""
    return min(limits.max_num_tokens, limits.max_batch_size * min(limits.prompt_chunk, limits.max_seq_len))


def prompt_rows(most: int) -> list[int]:
    """Sizes for passes of up to `most` rows.

    A few rows cost what streaming the weights costs, however many: 16, 64, 256. Beyond, time grows with the rows and
    padding wastes it: powers of two, from 512 on with a size half way to the next.
    """
    sizes = [16, 64, 256]
    while sizes[-1] < most:
        sizes += [2 * sizes[-1]] if len(sizes) == 3 else [sizes[-1] * 3 // 2, sizes[-1] * 2]
    return sorted({*(n for n in sizes if n < most), most})
