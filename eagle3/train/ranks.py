"""The ranks of a run: one alone, or as many as torchrun started.

Tensors of the device are added up by its own backend, which the host does not wait for. What hosts say to each other
goes through gloo, where a rank that is gone, or silent for train.timeout, is an error at once and not a hang.
"""

import atexit
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor

from eagle3.errors import RunError

TERMINATED = 128 + signal.SIGTERM  # a shell's exit code for it


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that train one head."""

    device: torch.device
    rank: int = 0
    size: int = 1
    hosts: dist.ProcessGroup | None = None  # None: the group of the tensors is one of hosts

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def add(self, tensors: Sequence[Tensor], *, mean: bool = False) -> None:
        """Replace tensors of one type by their sums (or means) over all ranks. RunError where a rank is gone."""
        if self.size == 1:
            return
        flat = torch.cat([t.flatten() for t in tensors])
        self._add(flat, None)
        if mean:
            flat /= self.size
        parts = torch.split(flat, [t.numel() for t in tensors])
        torch._foreach_copy_(list(tensors), [part.view_as(t) for t, part in zip(tensors, parts, strict=True)])

    def any(self, here: bool) -> bool:
        """Whether it is so on any rank; the device is not waited for. RunError where a rank is gone."""
        if self.size == 1:
            return here
        flag = torch.tensor([int(here)])
        self._add(flag, self.hosts)
        return bool(flag.item())

    def _add(self, flat: Tensor, group: dist.ProcessGroup | None) -> None:
        try:
            dist.all_reduce(flat, group=group)
        except RuntimeError as fault:  # what torch makes of a closed connection and of a time-out
            reason = str(fault).strip().splitlines()[0]
            raise RunError(f"rank {self.rank}: another rank is gone or too slow (train.timeout): {reason}") from fault


@contextmanager
def ranks(device: torch.device, timeout: int) -> Iterator[Ranks]:
    """The ranks that torchrun tells of in the environment; rank i takes GPU LOCAL_RANK unless all share the CPU."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        with _at_sigterm(SystemExit(TERMINATED)):
            yield Ranks(device)
        return
    cuda, limit = device.type == "cuda", timedelta(seconds=timeout)
    if cuda:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        # a sum that another rank never joins is given up, without a minute to record what each rank did, and the
        # process lives to say so through `any`
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "500")
    try:
        # the hosts' own limit is met first: they end with one line where NCCL would print its stacks
        dist.init_process_group("nccl" if cuda else "gloo", timeout=2 * limit if cuda else limit)
        hosts = dist.new_group(backend="gloo", timeout=limit) if cuda else None
    except (RuntimeError, ValueError) as fault:
        reason = str(fault).strip().splitlines()[0]
        raise RunError(f"the ranks of torchrun did not find each other: {reason}") from fault
    here = Ranks(device, dist.get_rank(), size, hosts)
    try:
        told = f"rank {here.rank}: ended by SIGTERM, as torchrun does when another rank is gone"
        with _at_sigterm(RunError(told)):
            yield here
    except BaseException:
        if cuda and dist.group.WORLD is not None:
            atexit.register(
                dist.group.WORLD.abort
            )  # once the error is told: sums under way wait for ranks that are gone
        raise
    dist.destroy_process_group()  # not after an error: it would wait for ranks that are gone


@contextmanager
def _at_sigterm(error: BaseException) -> Iterator[None]:
    """SIGTERM raises `error`; torchrun sends it to all other ranks when one is gone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ended(_: int, __: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
