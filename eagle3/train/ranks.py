"""The ranks of a run: one alone, or as many as torchrun started."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from eagle3.errors import RunError


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that train one head."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def add(self, tensors: Sequence[Tensor], *, mean: bool = False) -> None:
        """Replace tensors of one type by their sums (or means) over all ranks. RunError where a rank is gone."""
        if self.size == 1:
            return
        flat = torch.cat([t.flatten() for t in tensors])
        try:
            dist.all_reduce(flat)
        except RuntimeError as fault:  # what torch makes of a closed connection and of a time-out
            reason = str(fault).strip().splitlines()[0]
            raise RunError(f"rank {self.rank}: another rank is gone or too slow (train.timeout): {reason}") from fault
        if mean:
            flat /= self.size
        parts = torch.split(flat, [t.numel() for t in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def any(self, here: bool) -> bool:
        """Whether it is so on any rank."""
        if self.size == 1:
            return here
        flag = torch.tensor([float(here)], device=self.device)
        self.add([flag])
        return bool(flag.item() > 0)


@contextmanager
def ranks(device: torch.device, timeout: int) -> Iterator[Ranks]:
    """The ranks that torchrun tells of in the environment; rank i takes GPU LOCAL_RANK unless all share the CPU."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks(device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as fault:
        reason = str(fault).strip().splitlines()[0]
        raise RunError(f"the ranks of torchrun did not find each other: {reason}") from fault
    yield Ranks(device, dist.get_rank(), size)
    dist.destroy_process_group()  # not after an error: it would wait for ranks that are gone
