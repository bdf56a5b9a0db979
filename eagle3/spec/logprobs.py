"""What the target itself gives the tokens that a pass emits: log-probabilities of its logits as they are."""

from typing import NamedTuple

import torch
from torch import Tensor

from eagle3.ops.log_mass import log_mass
from eagle3.ops.select import topk

MOST = 20  # of the best beside a token


class Logprobs(NamedTuple):
    """Before temperature, filters, penalties and least lengths; float32, or float64 of a target in float64."""

    own: Tensor  # [B, P]
    best: Tensor  # [B, P, k] i64, the k most probable tokens, of equals the lower id first
    tops: Tensor  # [B, P, k], theirs


def logprobs(logits: Tensor, rows: Tensor, tokens: Tensor, k: int) -> Logprobs:
    """Of tokens [B, P] i64, each by the row of logits [.., V] that rows [B, P] i64 names; k is V at most."""
    at = rows.flatten()
    mass = log_mass(logits, at)
    own = logits[at, tokens.flatten()].to(mass.dtype) - mass
    best = topk(logits[at], min(k, logits.shape[1]))[1] if k else tokens.new_empty(len(at), 0)
    tops = logits[at[:, None], best].to(mass.dtype) - mass[:, None]
    return Logprobs(own.view_as(rows), best.view(*rows.shape, best.shape[1]), tops.view(*rows.shape, best.shape[1]))


def node_rows(nodes: Tensor, count: int) -> Tensor:
    """The rows [G, P] of the nodes after which tokens were accepted: the roots, then nodes [G, D]; of `count` each."""
    first = torch.arange(nodes.shape[0], device=nodes.device)[:, None] * count
    return torch.cat([first, first + nodes.clamp(min=0)], dim=1)
