"""The attention kernel alone: one layer's trees of guesses over long contexts, without a model around it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eagle3.bench.floor import PEAKS, Load
from eagle3.build.target import engine_limits, pick_device, target_facts, torch_dtype
from eagle3.config.load import Composed
from eagle3.engine.runner import on
from eagle3.errors import ConfigError, Problem
from eagle3.ops.streams import graph_us
from eagle3.ops.tree_attention import tree_attention

BETWEEN = 128 << 20  # bytes read before a pool's turn comes again: more than caches hold
CALLS = 32  # in a graph, at least
REPLAYS = 20


@dataclass(frozen=True)
class Case:
    """The attention of one layer of a step."""

    batch: int
    rows: int  # N, a request
    context: int  # entries a request sees, the rows' own included
    page: int
    width: int  # M, pages in a block table
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    dtype: torch.dtype
    steady: bool  # runtime.batch_invariant

    @property
    def entry(self) -> int:
        """E, values in an entry."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def pages(self) -> int:
        """Pages of all requests, and the dummy."""
        return 1 + self.batch * -(-self.context // self.page)

    @property
    def copies(self) -> int:
        """Pools that take turns."""
        return 1 + -(-BETWEEN // (self.pages * self.page * self.entry * self.dtype.itemsize))

    def load(self) -> Load:
        """K/V read once, and each row's products with what it sees; queries and outputs count as nothing."""
        seen = self.context if self.window is None else min(self.context, self.window)
        return Load(
            self.batch * seen * self.entry * self.dtype.itemsize,
            4 * self.batch * self.rows * seen * self.heads * self.head_dim,
        )


@dataclass(frozen=True)
class Timed:
    """A case and its time."""

    case: Case
    us: float
    floor_us: float | None  # None: nobody measured what this device can do


def time_kernels(composed: Composed) -> list[Timed]:
    """Tree attention of a configuration's target at each of bench.batch_sizes. Raises `ConfigError` without a GPU."""
    composed.require_runnable()
    device = pick_device(composed.config.runtime.device)
    if device.type != "cuda":
        raise ConfigError([Problem("--kernels", "wants a GPU", str(device), "command line")])
    with on(device):
        return [timed(case, device) for case in cases(composed, device)]


def cases(composed: Composed, device: torch.device) -> list[Case]:
    """What to time: a context that is full, runtime.max_seq_len with the rows."""
    cfg, shape = composed.config, composed.shape
    folder, facts = target_facts(cfg.target)
    longest = engine_limits(cfg, facts).max_seq_len
    if longest < shape.nodes:
        raise ConfigError([Problem("runtime.max_seq_len", f"must hold the {shape.nodes} rows of a tree", longest)])
    page = cfg.kv.tokens_per_block
    return [
        Case(
            batch=batch,
            rows=shape.nodes,
            context=longest,
            page=page,
            width=shape.pages(longest, page),
            heads=facts.heads,
            kv_heads=facts.kv_heads,
            head_dim=facts.head_dim,
            window=facts.window,
            dtype=torch_dtype(cfg.target.dtype, folder, device),
            steady=cfg.runtime.batch_invariant,
        )
        for batch in cfg.bench.batch_sizes
    ]


def timed(case: Case, device: torch.device) -> Timed:
    """Its median time in a CUDA graph of many calls, over pools that no cache holds."""
    us = graph_us([calls(case, device)], REPLAYS)[0]
    peak = PEAKS.get(torch.cuda.get_device_name(device)) if case.dtype.itemsize == 2 else None
    return Timed(case, us, 1000 * case.load().ms(peak) if peak else None)


@torch.inference_mode()
def calls(case: Case, device: torch.device) -> list[Callable[[], Tensor]]:
    """Calls of the op, each on another pool than the one before it."""
    make = torch.Generator(device).manual_seed(0)
    drawn = partial(torch.randn, generator=make, device=device, dtype=case.dtype)
    q = drawn(case.batch * case.rows, case.heads, case.head_dim)
    pools = drawn(case.copies, case.pages, case.page, case.entry)
    used = (case.pages - 1) // case.batch
    table = torch.zeros(case.batch, case.width, dtype=torch.int32, device=device)
    ids = 1 + torch.randperm(case.pages - 1, generator=make, device=device, dtype=torch.int32)
    table[:, :used] = ids.view(case.batch, used)
    kv_lens = torch.full((case.batch,), case.context, dtype=torch.int32, device=device)
    depth, mask = binary_tree(case.rows)
    depth, mask = (x.to(device).expand(case.batch, *x.shape).contiguous() for x in (depth, mask))
    attend = partial(
        tree_attention,
        kv_lens=kv_lens,
        table=table,
        tail=case.rows,
        depth=depth,
        mask=mask if case.rows > 1 else None,
        scale=case.head_dim**-0.5,
        window=case.window,
        n_kv=case.kv_heads,
        steady=case.steady,
    )
    return [partial(attend, q, pools[i % case.copies]) for i in range(max(case.copies, CALLS))]


def binary_tree(nodes: int) -> tuple[Tensor, Tensor]:
    """depth [N] and ancestor mask [N, W] i32 of a tree whose node i hangs below node (i - 1) // 2."""
    paths: list[Sequence[int]] = [(0,)]
    for node in range(1, nodes):
        paths.append((*paths[(node - 1) // 2], node))
    mask = torch.zeros(nodes, -(-nodes // 32), dtype=torch.int64)
    for node, path in enumerate(paths):
        for seen in path:
            mask[node, seen // 32] |= 1 << (seen % 32)
    mask = torch.where(mask >= 1 << 31, mask - (1 << 32), mask)  # bit 31 is the sign
    return torch.tensor([len(path) - 1 for path in paths], dtype=torch.int32), mask.to(torch.int32)
