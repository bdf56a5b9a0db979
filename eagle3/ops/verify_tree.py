"""Walk from the root along the children that carry the target's own tokens."""

# ruff: noqa: ANN001, ANN202 (a kernel's arguments have no Python types)

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from eagle3.ops.dispatch import follow, overlapped


def verify_tree_torch(
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


def verify_tree_triton(
    tokens: Tensor, first_child: Tensor, next_sibling: Tensor, predicted: Tensor, has_tree: Tensor, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As `verify_tree_torch`, in one launch: a program walks a request's links."""
    requests, nodes = tokens.shape
    links = (tokens, first_child, next_sibling, predicted, has_tree)
    assert all(t.is_contiguous() for t in links)
    emitted = torch.empty(requests, depth + 1, dtype=torch.int64, device=tokens.device)
    counts = torch.empty(requests, dtype=torch.int64, device=tokens.device)
    path = torch.empty(requests, depth, dtype=torch.int64, device=tokens.device)
    _verify_tree_kernel[(requests,)](*links, emitted, counts, path, nodes, depth, num_warps=1, **overlapped(counts))
    return emitted, counts, path


@triton.jit  # type: ignore[untyped-decorator]
def _verify_tree_kernel(  # type: ignore[no-untyped-def]
    tokens,
    first_child,
    next_sibling,
    predicted,
    has_tree,
    emitted,
    counts,
    path,
    nodes,
    depth,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    request = tl.program_id(0).to(tl.int64)
    row = request * nodes
    wanted = tl.load(predicted + row)
    tl.store(emitted + request * (depth + 1), wanted)
    alive = tl.load(has_tree + request).to(tl.int1)
    at, count = tl.full([], 0, tl.int32), tl.full([], 1, tl.int64)
    for level in range(depth):
        child = tl.where(alive, tl.load(first_child + row + at), -1)
        token = tl.load(tokens + row + tl.maximum(child, 0))
        while (child >= 0) & (token != wanted):
            child = tl.load(next_sibling + row + child)
            token = tl.load(tokens + row + tl.maximum(child, 0))
        alive = child >= 0
        at = tl.maximum(child, 0)
        wanted = tl.where(alive, tl.load(predicted + row + at), 0)
        count += alive.to(tl.int64)
        tl.store(path + request * depth + level, child.to(tl.int64))
        tl.store(emitted + request * (depth + 1) + level + 1, wanted)
    tl.store(counts + request, count)


def verify_tree(
    tokens: Tensor, first_child: Tensor, next_sibling: Tensor, predicted: Tensor, has_tree: Tensor, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As `verify_tree_torch`, by the kernel on a GPU."""
    verify = verify_tree_triton if tokens.is_cuda else verify_tree_torch
    return verify(tokens, first_child, next_sibling, predicted, has_tree, depth)
