"""How many pages the KV pools get."""

from dataclasses import dataclass

import torch

from eagle3.build.memory import all_bytes, free_bytes, mib
from eagle3.config.schema import DraftPool, EngineConfig, KVConfig
from eagle3.config.shape import DraftShape
from eagle3.engine.scheduler import Limits
from eagle3.errors import CapacityError
from eagle3.kv.pool import KVLayout, KVPool
from eagle3.models.decoder import Decoder
from eagle3.models.draft import DraftModel


@dataclass(frozen=True)
class PoolPlan:
    """One pool, or with `kv.draft_pool=separate` a second one for the head; all of as many pages."""

    kv: KVConfig
    groups: list[tuple[KVLayout, torch.dtype]]  # the target's, then the head's
    most: int  # entries of a request at its longest
    want_entries: int
    device: torch.device

    @classmethod
    def of(
        cls, cfg: EngineConfig, limits: Limits, shape: DraftShape, target: Decoder, head: DraftModel | None
    ) -> "PoolPlan":
        """What the target and a head ask for."""
        groups: list[tuple[KVLayout, torch.dtype]] = [(target.kv_layout, target.embed.weight.dtype)]
        if head is not None:
            groups.append((head.kv_layout, head.dtype))
        most = shape.entries(limits.max_seq_len)
        return cls(cfg.kv, groups, most, limits.max_batch_size * most, target.embed.weight.device)

    @property
    def page(self) -> int:
        """Entries a page."""
        return self.kv.tokens_per_block

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position, over all layers."""
        return sum(layout.layers * layout.width * dtype.itemsize for layout, dtype in self.groups)

    def build(self, reserved: int) -> list[KVPool]:
        """The pools, of what is free beside `reserved` bytes; `CapacityError` where that is too little."""
        need = self.bytes_per_token, self.want_entries, self.most
        return self.of_pages(1 + pool_pages(self.kv, *need, self.device, reserved))

    def of_pages(self, pages: int) -> list[KVPool]:
        """The pools, of so many pages."""
        if self.kv.draft_pool is DraftPool.joint:
            return [KVPool(self.groups, pages, self.page, self.device)]
        return [KVPool([group], pages, self.page, self.device) for group in self.groups]


def pool_pages(
    kv: KVConfig, bytes_per_token: int, want_entries: int, least_entries: int, device: torch.device, reserved: int = 0
) -> int:
    """Pages for pools that take so many bytes a token together, page 0 not counted.

    `kv.max_tokens` decides where it is set; else as many as `want_entries` (every request at its longest) need, or as
    fit in `kv.free_gpu_memory_fraction` of what is free once `reserved` bytes are taken by workspaces and graphs.
    Raises `CapacityError` below `least_entries`.
    """
    page = kv.tokens_per_block
    if kv.max_tokens is not None:
        if kv.max_tokens * bytes_per_token > all_bytes(device):
            raise CapacityError(
                f"kv.max_tokens={kv.max_tokens} entries of {bytes_per_token} bytes are more than the memory there is: "
                "lower it, or leave it out"
            )
        return max(1, kv.max_tokens // page)
    left = max(0, free_bytes(device) - reserved)
    fit = int(left * kv.free_gpu_memory_fraction) // (bytes_per_token * page)
    if fit * page < least_entries:
        raise CapacityError(
            f"{fit * page} KV entries fit in memory ({bytes_per_token} bytes each, {mib(reserved)} kept for workspaces "
            f"and graphs), one request at its longest needs {least_entries}: lower runtime.max_seq_len, or "
            "runtime.max_batch_size and max_num_tokens"
        )
    return min(fit, -(-want_entries // page))
