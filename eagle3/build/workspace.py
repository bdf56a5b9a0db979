"""What the largest passes take of a GPU beside what they keep, measured by running them."""

from collections.abc import Callable
from functools import partial

import torch

from eagle3.engine.graphs import FILTERED
from eagle3.engine.prepare import Preparer
from eagle3.engine.request import Request, SamplingParams
from eagle3.engine.scheduler import Chunk, Limits
from eagle3.spec.batch import Contexts, Generations
from eagle3.spec.worker import Worker


@torch.inference_mode()
def workspace_bytes(worker: Worker, preparer: Preparer, limits: Limits, pools: int, *, graphs: bool) -> int:
    """Bytes of a GPU that workspaces, and with `graphs` these too, will take; `worker` has pools of the dummy page.

    Passes share their workspace. Graphs share another: captured from the smallest pass up, where each may find no
    room in what those before it left, they take twice what the largest does. What a graph is itself is not in it,
    nor what pieces of memory between others lose: that is for the share that the pools leave.
    """
    device = preparer.device
    prompts = contexts(preparer, worker, limits, pools)
    rows = generations(worker, limits, pools, preparer)
    passes: tuple[Callable[[], object], ...] = (partial(worker.contexts, prompts), partial(worker.generations, rows))
    spent = []
    for run in passes:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_reserved(device)
        run()
        torch.cuda.synchronize(device)
        spent.append(torch.cuda.max_memory_reserved(device) - before)
    worker.slots.restore(prompts.slots)
    torch.cuda.empty_cache()
    return max(spent) * (3 if graphs else 1)


def contexts(preparer: Preparer, worker: Worker, limits: Limits, pools: int) -> Contexts:
    """The prompt pass of most rows, all of it in the dummy page."""
    longest = min(limits.max_seq_len - 1, limits.prompt_chunk, limits.max_num_tokens)
    count = min(limits.max_batch_size, -(-limits.max_num_tokens // longest))
    lengths = [min(longest, limits.max_num_tokens - i * longest) for i in range(count)]
    greedy = SamplingParams(1, 0.0, 0, 1.0, 0.0, 0, frozenset())
    chunks = []
    for slot, length in enumerate(lengths):
        request = Request(str(slot), [0] * length, greedy, length, 1, slot=slot, prefill=length)
        request.pages = [[0] * worker.shape.pages(limits.max_seq_len, preparer.page) for _ in range(pools)]
        chunks.append(Chunk(request, 0, length, last=True, emits=True))
    return preparer.contexts(chunks)


def generations(worker: Worker, limits: Limits, pools: int, preparer: Preparer) -> Generations:
    """The generation pass of most rows, of dummies, with the draw that takes most."""
    batch, width = limits.max_batch_size, worker.shape.pages(limits.max_seq_len, preparer.page)
    table = torch.zeros(batch, width, dtype=torch.int32, device=preparer.device)
    slots = torch.full((batch,), worker.slots.dummy, device=preparer.device)
    return Generations(slots, (table,) * pools, FILTERED)
