"""One rule for every mode: the target's own token at each node, then the longest path that carries it."""

from torch import Tensor

from eagle3.ops.sample import sample
from eagle3.ops.verify_tree import verify_tree
from eagle3.spec.batch import Accepted, Draws, Sampling
from eagle3.spec.slots import SlotState


def draw(logits: Tensor, sampling: Sampling, index: Tensor, draws: Draws) -> Tensor:
    """The target's token [R] for logits [R, V]; `index` [R] is the place in the sequence that it takes."""
    return sample(logits, *sampling.tensors(), index, greedy=draws.greedy, filtered=draws.filtered)


def accept(logits: Tensor, state: SlotState, draws: Draws, depth: int) -> Accepted:
    """Walk the trees of G requests whose N nodes each have a row in `logits` [G · N, V]."""
    nodes = state.tree.tokens.shape[1]
    sampling = Sampling(*(t.repeat_interleave(nodes) for t in state.sampling.tensors()))
    # the node at depth d stands at length + d and predicts the token after it
    index = (state.length[:, None] + state.tree.depth + 1).flatten()
    predicted = draw(logits, sampling, index, draws).view(-1, nodes)
    tree = state.tree
    return Accepted(
        *verify_tree(tree.tokens, tree.first_child, tree.next_sibling, predicted, state.has_tree, depth)
    )
