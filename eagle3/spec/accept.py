"""One rule for every mode: the target's own token at each node, then the longest path that carries it.

Two stand-ins exist: `reject`, the ratio test for chains whose drafts were drawn, and `synthetic`, which pretends.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from eagle3.ops.philox import Stream, coin, noise
from eagle3.ops.sample import filter_logits, sample
from eagle3.ops.select import argmax
from eagle3.ops.verify_tree import verify_tree
from eagle3.spec.batch import Accepted, Draws, Sampling
from eagle3.spec.slots import SlotState

Verify = Callable[[Tensor, SlotState, Draws, int], Accepted]  # logits [G · N, V], state, draws, D


def draw(logits: Tensor, sampling: Sampling, index: Tensor, draws: Draws) -> Tensor:
    """The target's token [R] for logits [R, V]; `index` [R] is the place in the sequence that it takes."""
    return sample(logits, *sampling.tensors(), index, greedy=draws.greedy, filtered=draws.filtered)


def accept(logits: Tensor, state: SlotState, draws: Draws, depth: int) -> Accepted:
    """Walk the trees of G requests whose N nodes each have a row in `logits` [G · N, V]."""
    tree, nodes = state.tree, state.tree.tokens.shape[1]
    predicted = draw(logits, _each(state.sampling, nodes), _index(state).flatten(), draws).view(-1, nodes)
    return Accepted(*verify_tree(tree.tokens, tree.first_child, tree.next_sibling, predicted, state.has_tree, depth))


def reject(
    logits: Tensor, state: SlotState, draws: Draws, depth: int, *, to_target: Callable[[Tensor], Tensor]
) -> Accepted:
    """The ratio test of speculative sampling (Leviathan et al. 2023, algorithm 1) on chains of D drawn drafts.

    Draft d is kept with probability min(1, p(d) / q(d)); at the first that is not, a token is drawn from what p has
    over q; after the last, from p. Equal to `accept` in law, not token for token. Greedy rows have one-hot p and q.
    """
    nodes = depth + 1
    wide = _each(state.sampling, nodes)
    temperature, top_k, top_p, min_p, _ = wide.tensors()
    p = filter_logits(logits, temperature, top_k, top_p, min_p).softmax(-1).view(-1, nodes, logits.shape[1])
    assert state.probs is not None
    known = to_target(torch.arange(state.probs.shape[2], device=p.device))  # [Vd] target ids
    q = torch.zeros_like(p)
    q[:, :depth, known] = (state.probs * state.has_tree[:, None, None]).to(p.dtype)
    drafts = state.tree.tokens[:, 1:, None]
    index = _index(state)  # [G, P]
    seed = state.sampling.seed[:, None].expand_as(index)
    chance = coin(seed.flatten(), index.flatten(), Stream.COIN).view_as(index)[:, :depth]
    wins = chance * q[:, :depth].gather(2, drafts)[..., 0] < p[:, :depth].gather(2, drafts)[..., 0]
    kept = (wins & state.has_tree[:, None]).long().cumprod(1)  # [G, D]
    count = kept.sum(1)
    at = count[:, None, None].expand(-1, 1, p.shape[2])
    rest = (p - q).clamp(min=0).gather(1, at)[:, 0]  # [G, V]; q is 0 after the last draft
    # rounding may leave nothing where p and q are alike
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p.gather(1, at)[:, 0])
    race = noise(state.sampling.seed, state.length + count + 1, Stream.RESIDUAL, p.shape[2])
    bonus = argmax(rest.log() - race.log().neg().log())
    node = torch.arange(1, nodes, device=p.device)
    tokens = torch.zeros_like(index)
    tokens[:, :depth] = drafts[..., 0] * kept
    tokens.scatter_(1, count[:, None], bonus[:, None])
    return Accepted(tokens, count + 1, torch.where(kept > 0, node, -1))


def synthetic(logits: Tensor, state: SlotState, draws: Draws, depth: int, *, mean: float) -> Accepted:
    """Pretend that `mean` tokens a step are right, the bonus included: for timing; the text is worth nothing.

    Takes the path of first children: floor(mean) tokens, and one more with the rest's probability.
    """
    tree = state.tree
    more = coin(state.sampling.seed, state.length + 1, Stream.COIN) < mean % 1
    wanted = (int(mean) - 1 + more.long()) * state.has_tree  # [G] drafts
    at, path = torch.zeros_like(state.length)[:, None], []
    for level in range(depth):
        child = tree.first_child.long().gather(1, at)
        going = (child >= 0) & (wanted[:, None] > level)
        at = torch.where(going, child, at)
        path.append(torch.where(going, child, -1))
    nodes = torch.cat(path, dim=1)  # [G, D]
    count = (nodes >= 0).sum(1)
    rows = logits.view(len(at), -1, logits.shape[1])
    last = rows.gather(1, at[:, :, None].expand(-1, 1, rows.shape[2]))[:, 0]
    bonus = draw(last, state.sampling, state.length + count + 1, draws)
    tokens = torch.zeros(len(at), depth + 1, dtype=torch.int64, device=at.device)
    tokens[:, :depth] = torch.where(nodes >= 0, tree.tokens.gather(1, nodes.clamp(min=0)), 0)
    tokens.scatter_(1, count[:, None], bonus[:, None])
    return Accepted(tokens, count + 1, nodes)


def _index(state: SlotState) -> Tensor:
    """[G, N] the place in the sequence of the token after each node, which stands at length + depth."""
    return state.length[:, None] + state.tree.depth + 1


def _each(sampling: Sampling, nodes: int) -> Sampling:
    """One row a node."""
    return sampling.map(lambda t: t.repeat_interleave(nodes))
