"""Walk from the root along the children that carry the target's own tokens."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def verify_tree(
    tokens: Tensor, first_child: Tensor, next_sibling: Tensor, predicted: Tensor, has_tree: Tensor, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(accepted tokens [B, P], counts [B] in 1 … P, nodes [B, D]), all i64, of B trees of N nodes.

    tokens, first_child, next_sibling [B, N], siblings linked in ascending order; predicted [B, N] i64, the
    target's token after each node; has_tree [B] bool, without one nothing but predicted[:, 0] is accepted.
    tokens[:, count - 1] is the bonus; columns past the count hold 0, nodes past the end -1.
    """
    parent, ids = _parents(first_child, next_sibling), torch.arange(tokens.shape[1], device=tokens.device)
    at = torch.zeros_like(has_tree, dtype=torch.int64)[:, None]  # [B, 1]
    alive, path, emitted = has_tree[:, None], [at[:, :0]], [predicted[:, :1]]
    for _ in range(depth):
        wanted = (parent == at) & (tokens == predicted.gather(1, at))  # [B, N]
        child = torch.where(wanted, ids, len(ids)).amin(1, keepdim=True)
        alive = alive & (child < len(ids))
        at = torch.where(alive, child, at)
        path.append(torch.where(alive, at, -1))
        emitted.append(torch.where(alive, predicted.gather(1, at), 0))
    nodes = torch.cat(path, dim=1)
    return torch.cat(emitted, dim=1), 1 + (nodes >= 0).sum(1), nodes


def _parents(first_child: Tensor, next_sibling: Tensor) -> Tensor:
    """[B, N] i64, -1 for the root and for nodes that no link leads to."""
    n = first_child.shape[1]
    ids = torch.arange(n, device=first_child.device).expand_as(first_child)
    # column N takes what links that end would write
    elder = pad(ids, (0, 1)).scatter(1, torch.where(next_sibling < 0, n, next_sibling).long(), ids)[:, :n]
    for _ in range((n - 1).bit_length()):  # doubling: each node's eldest sibling
        elder = elder.gather(1, elder)
    head = torch.full_like(pad(ids, (0, 1)), -1)
    head = head.scatter(1, torch.where(first_child < 0, n, first_child).long(), ids)[:, :n]
    return head.gather(1, elder)
