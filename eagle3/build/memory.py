"""What memory there is, and what an engine takes of it."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eagle3.engine.engine import Engine
from eagle3.engine.graphs import GraphRunner
from eagle3.kv.pool import KVPool
from eagle3.spec.drafter import Drafter


def free_bytes(device: torch.device) -> int:
    """Bytes that nobody uses on a GPU, or half of those on a CPU, whose memory is others' too."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def all_bytes(device: torch.device) -> int:
    """Bytes of memory that the device has."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Memory:
    """What an engine takes of its device's memory, in bytes."""

    target: int  # weights and rope tables
    head: int
    slots: int
    capture: int
    kv: int
    kv_entries: int  # that requests can use
    kv_bytes_per_token: int
    graphs: int
    left: int  # nobody's yet

    @classmethod
    def of(cls, engine: Engine) -> "Memory":
        """As it is now: graphs are those captured so far."""
        runner, worker = engine.runner, engine.runner.worker
        spec, slots = worker.spec, worker.slots
        drafter = spec.drafter if spec else None
        pools = [worker.pool] if drafter is None or drafter.pool is worker.pool else [worker.pool, drafter.pool]
        head = drafter.head if isinstance(drafter, Drafter) else None
        state = [*slots.tree.tensors(), slots.has_tree, slots.length, *slots.sampling.tensors(), *slots.adjust.terms]
        return cls(
            target=_module(worker.target),
            head=_module(head) if isinstance(head, nn.Module) else 0,
            slots=_sum(state if slots.probs is None else [*state, slots.probs]),
            capture=_sum([spec.capture.hidden] if spec else []),
            kv=sum(_sum(pool.groups) for pool in pools),
            kv_entries=(worker.pool.pages - 1) * worker.pool.page,
            kv_bytes_per_token=sum(_per_token(pool) for pool in pools),
            graphs=runner.graph_bytes if isinstance(runner, GraphRunner) else 0,
            left=free_bytes(runner.preparer.device),
        )

    def rows(self) -> list[tuple[str, str]]:
        """What it is, and how much."""
        entries = f"KV pools, {self.kv_entries} entries of {self.kv_bytes_per_token} bytes"
        parts = [("target", self.target), ("head", self.head), ("slots", self.slots), ("capture", self.capture)]
        parts += [(entries, self.kv), ("graphs", self.graphs), ("left", self.left)]
        return [(name, mib(size)) for name, size in parts]

    def __str__(self) -> str:
        return "; ".join(f"{name} {size}" for name, size in self.rows())


def mib(size: int) -> str:
    """Bytes for people."""
    return f"{size / 2**20:.1f} MiB"


def _module(module: nn.Module) -> int:
    return _sum([*module.parameters(), *module.buffers()])


def _sum(tensors: Iterable[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)


def _per_token(pool: KVPool) -> int:
    return sum(group.shape[0] * group.shape[3] * group.dtype.itemsize for group in pool.groups)
