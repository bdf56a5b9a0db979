"""From a plan to tensors: the only place where lists become tensors."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eagle3.engine.request import Request, SamplingParams
from eagle3.engine.scheduler import Chunk
from eagle3.kv.meta import PromptMeta
from eagle3.spec.adjust import MOST_STOPS
from eagle3.spec.batch import Asked, Contexts, Draws, Generations, Sampling
from eagle3.spec.logprobs import MOST


class Preparer:
    """Turns plans into batches on a device, for pools of the given page size.

    `beyond` is how many entries past its rows a prompt chunk's pass may touch: those of the draft loop.
    """

    def __init__(self, page: int, beyond: int, device: torch.device) -> None:
        self.page = page
        self.beyond = beyond
        self.device = device
        self.pins = device.type != "cpu"  # copies do not wait for the device

    def contexts(self, chunks: Sequence[Chunk]) -> Contexts:
        """A pass over prompt chunks, at least one."""
        requests, kind = [c.request for c in chunks], chunk_draws(chunks)
        lens = [c.end - c.start for c in chunks]
        first = [0]
        for n in lens:
            first.append(first[-1] + n)
        return Contexts(
            ids=self._i64([t for c in chunks for t in c.request.tokens[c.start : c.end]]),
            following=self._i64([t for c in chunks for t in following(c)]),
            positions=self._i64([i for c in chunks for i in range(c.start, c.end)]),
            metas=tuple(self._meta(chunks, first, max(lens), pool) for pool in range(len(requests[0].pages))),
            predict=self._i64([n - 1 for n in first[1:]]),
            slots=self._i64([slot(r) for r in requests]),
            last=self._tensor([c.last for c in chunks], torch.bool),
            given=self._i64([r.tokens[r.prefill] if r.resumed else -1 for r in requests]),
            sampling=self._sampling([r.sampling for r in requests]),
            draws=kind,
            ending=any(c.last for c in chunks),
            asked=self.asked(chunks) if kind.adjusted else None,
        )

    def asked(self, chunks: Sequence[Chunk]) -> Asked:
        """What the chunks' requests ask of their logits."""
        rows = [c.request.sampling for c in chunks]
        places = [(c.request, place) for c in chunks for place in range(c.start, c.end)]
        ends = [sorted(p.ends)[:MOST_STOPS] for p in rows]
        return Asked(
            free=self._i64([c.request.prompt_len + c.request.sampling.min_new_tokens for c in chunks]),
            stops=self._i64([own + [-1] * (MOST_STOPS - len(own)) for own in ends]),
            penalties=self._tensor([p.penalties for p in rows], torch.float32),
            slots=self._i64([slot(request) for request, _ in places]),
            written=self._tensor([place >= request.prompt_len for request, place in places], torch.bool),
        )

    def generations(self, requests: Sequence[Request]) -> Generations:
        """A pass over requests that generate, at least one."""
        return Generations(
            slots=self._i64([slot(r) for r in requests]),
            tables=tuple(self._table([r.pages[pool] for r in requests]) for pool in range(len(requests[0].pages))),
            draws=draws(requests),
        )

    def ids(self, slots: Sequence[int]) -> Tensor:
        """Slots [B] i64."""
        return self._i64(slots)

    def _meta(self, chunks: Sequence[Chunk], first: list[int], longest: int, pool: int) -> PromptMeta:
        pages = [c.request.pages[pool] for c in chunks]
        write_at = [
            own[i // self.page] * self.page + i % self.page
            for c, own in zip(chunks, pages, strict=True)
            for i in range(c.start, c.end)
        ]
        return PromptMeta(
            write_at=self._i64(write_at),
            cu_q=self._tensor(first, torch.int32),
            kv_lens=self._tensor([c.end for c in chunks], torch.int32),
            table=self._table(
                [own[: -(-(c.end + self.beyond) // self.page)] for c, own in zip(chunks, pages, strict=True)]
            ),
            max_q=longest,
        )

    def _table(self, pages: Sequence[list[int]]) -> Tensor:
        """[B, M] i32, as wide as the longest; short rows end in the dummy page."""
        width = max(map(len, pages))
        return self._tensor([row + [0] * (width - len(row)) for row in pages], torch.int32)

    def _sampling(self, rows: Sequence[SamplingParams]) -> Sampling:
        return Sampling(
            temperature=self._tensor([p.temperature for p in rows], torch.float32),
            top_k=self._tensor([p.top_k for p in rows], torch.int32),
            top_p=self._tensor([p.top_p for p in rows], torch.float32),
            min_p=self._tensor([p.min_p for p in rows], torch.float32),
            seed=self._i64([p.seed for p in rows]),
        )

    def _i64(self, values: Sequence[object]) -> Tensor:
        return self._tensor(values, torch.int64)

    def _tensor(self, values: Sequence[object], dtype: torch.dtype) -> Tensor:
        if not self.pins:
            return torch.tensor(values, dtype=dtype)
        return torch.tensor(values, dtype=dtype, pin_memory=True).to(self.device, non_blocking=True)


def slot(request: Request) -> int:
    """The slot of a request that runs."""
    assert request.slot is not None
    return request.slot


def following(chunk: Chunk) -> list[int]:
    """The token after each of a chunk's; 0 for one that is not known yet."""
    tokens = chunk.request.tokens[chunk.start + 1 : chunk.end + 1]
    return tokens + [0] * (chunk.end - chunk.start - len(tokens))


def draws(requests: Sequence[Request]) -> Draws:
    """What the host knows of their sampling."""
    return Draws(
        greedy=all(r.sampling.greedy for r in requests),
        filtered=any(r.sampling.filtered for r in requests),
        least=any(r.goes_on for r in requests),
        penalised=any(r.sampling.penalised for r in requests),
        logprobs=_logprobs(requests),
    )


def _logprobs(requests: Sequence[Request]) -> int | None:
    """One of three, so that there are few kinds of graphs."""
    asked = [r.sampling.logprobs for r in requests if r.sampling.logprobs is not None]
    return (MOST if max(asked) > 0 else 0) if asked else None


def chunk_draws(chunks: Sequence[Chunk]) -> Draws:
    """The same of prompt chunks: where a prompt goes on, nothing is drawn."""
    return replace(
        draws([c.request for c in chunks]),
        least=any(c.last and c.request.goes_on for c in chunks),
        logprobs=_logprobs([c.request for c in chunks if c.emits]),
    )
