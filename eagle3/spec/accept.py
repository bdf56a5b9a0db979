"""One rule for every mode: the target's own token at each node, then the longest path that carries it.

Two stand-ins exist: `reject`, the ratio test for chains whose drafts were drawn, and `synthetic`, which pretends.
`limited` takes any of them as far as a position.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from eagle3.ops.filters import filter_logits
from eagle3.ops.philox import Stream, coin, noise
from eagle3.ops.sample import sample
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
    tree, predicted = state.tree, _predicted(logits, state, draws)
    return Accepted(*verify_tree(tree.tokens, tree.first_child, tree.next_sibling, predicted, state.has_tree, depth))


def _predicted(logits: Tensor, state: SlotState, draws: Draws) -> Tensor:
    """[G, N] the target's token after each node."""
    nodes = state.tree.tokens.shape[1]
    if draws.greedy:
        return argmax(logits).view(-1, nodes)
    return draw(logits, _each(state.sampling, nodes), _index(state).flatten(), draws).view(-1, nodes)


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

    Takes the path of first children: floor(mean) tokens, and one more with the rest's probability. All the work of
    `accept` is done, on a tree that ends where the path shall, for a target that says what its first children say.
    """
    tree, predicted = state.tree, _predicted(logits, state, draws)
    wanted = torch.full_like(state.length, int(mean) - 1)  # [G] drafts
    if mean % 1:
        wanted = wanted + (coin(state.sampling.seed, state.length + 1, Stream.COIN) < mean % 1)
    child = torch.where(tree.depth < (wanted * state.has_tree)[:, None], tree.first_child, -1)
    said = tree.tokens.gather(1, child.clamp(min=0).long())
    predicted = torch.where(child >= 0, said, predicted)
    return Accepted(*verify_tree(tree.tokens, child, tree.next_sibling, predicted, state.has_tree, depth))


def limited(logits: Tensor, state: SlotState, draws: Draws, depth: int, *, verify: Verify, limit: int) -> Accepted:
    """`verify`, but of a tree that may reach position `limit` the root alone: such a request decodes plainly."""
    inside = state.length + depth < limit  # [G], the deepest node's position
    return verify(logits, replace(state, has_tree=state.has_tree & inside), draws, depth)


def _index(state: SlotState) -> Tensor:
    """[G, N] the place in the sequence of the token after each node, which stands at length + depth."""
    return state.length[:, None] + state.tree.depth + 1


def _each(sampling: Sampling, nodes: int) -> Sampling:
    """One row a node."""
    return sampling.map(lambda t: t.repeat_interleave(nodes))
