"""How many pages the pools get."""

import os

import torch

from eagle3.config.schema import KVConfig
from eagle3.errors import CapacityError


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


def pool_pages(kv: KVConfig, bytes_per_token: int, want_entries: int, least_entries: int, device: torch.device) -> int:
    """Pages for pools that take so many bytes a token together, page 0 not counted.

    `kv.max_tokens` decides where it is set; else as many as `want_entries` (every request at its longest) need, or as
    fit in `kv.free_gpu_memory_fraction` of the free memory. Raises `CapacityError` below `least_entries`.
    """
    page = kv.tokens_per_block
    if kv.max_tokens is not None:
        if kv.max_tokens * bytes_per_token > all_bytes(device):
            raise CapacityError(
                f"kv.max_tokens={kv.max_tokens} entries of {bytes_per_token} bytes are more than the memory there is: "
                "lower it, or leave it out"
            )
        return max(1, kv.max_tokens // page)
    fit = int(free_bytes(device) * kv.free_gpu_memory_fraction) // (bytes_per_token * page)
    if fit * page < least_entries:
        raise CapacityError(
            f"{fit * page} KV entries fit in memory ({bytes_per_token} bytes each), one request at its longest needs "
            f"{least_entries}: lower runtime.max_seq_len, or runtime.max_batch_size and max_num_tokens"
        )
    return min(fit, -(-want_entries // page))
