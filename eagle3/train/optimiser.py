"""AdamW over float32 masters, its rate a warm-up and a cosine."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from eagle3.config.schema import TrainConfig


def rate(train: TrainConfig, update: int, updates: int) -> float:
    """The learning rate of an update: linear up to train.lr, then a cosine down to nearly 0."""
    warm = math.ceil(train.warmup * updates)
    if update < warm:
        return train.lr * (update + 1) / warm
    return train.lr * 0.5 * (1 + math.cos(math.pi * (update - warm) / max(updates - warm, 1)))


class Optimiser:
    """What learns. Parameters of 16 bits have a float32 master each, others are their own."""

    def __init__(self, parameters: Iterable[nn.Parameter], train: TrainConfig) -> None:
        self.live = [p for p in parameters if p.requires_grad]
        self.masters: list[Tensor] = [
            p if p.itemsize >= 4 else p.detach().float().requires_grad_(True) for p in self.live
        ]
        self.clip = train.clip
        self.adam = torch.optim.AdamW(
            self.masters,
            lr=train.lr,
            betas=(0.9, 0.95),
            weight_decay=train.weight_decay,
            fused=all(m.is_cuda for m in self.masters) or None,  # one launch; None: as torch chooses
        )

    def collect(self) -> None:
        """After each way back: gradients of 16 bits are added up in the masters' type."""
        given = [(p, m, p.grad) for p, m in self._pairs() if p.grad is not None]
        wide = [torch.empty_like(m) for _, m, _ in given]
        if given:
            torch._foreach_copy_(wide, [grad for *_, grad in given])
        more = [(m.grad, w) for (_, m, _), w in zip(given, wide, strict=True) if m.grad is not None]
        if more:
            torch._foreach_add_([grad for grad, _ in more], [w for _, w in more])
        for (live, master, _), w in zip(given, wide, strict=True):
            live.grad = None
            if master.grad is None:
                master.grad = w

    def gradient(self) -> list[Tensor]:
        """The masters' gradients; zeros where a pass gave none."""
        for master in self.masters:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return [master.grad for master in self.masters if master.grad is not None]

    def update(self, lr: float) -> Tensor:
        """Clip and take a step; the norm of the gradient before it was clipped."""
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self.clip)
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self._to_live()
        return norm

    def state(self) -> dict[str, Any]:
        """All that a later run must know to go on with the same bits."""
        return {"masters": [m.detach() for m in self.masters], "adam": self.adam.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Take over a `state`."""
        with torch.no_grad():
            for master, kept in zip(self.masters, state["masters"], strict=True):
                master.copy_(kept)
        self.adam.load_state_dict(state["adam"])
        self._to_live()

    @torch.no_grad()
    def _to_live(self) -> None:
        if pairs := self._pairs():
            torch._foreach_copy_([live for live, _ in pairs], [master for _, master in pairs])

    def _pairs(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Parameters that have a master, and it."""
        return [(live, master) for live, master in zip(self.live, self.masters, strict=True) if live is not master]
