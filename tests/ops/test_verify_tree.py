import random
from typing import Any

import pytest
import torch

from eagle3.ops.verify_tree import verify_tree, verify_tree_torch, verify_tree_triton
from eagle3.spec.tree import chain, kary

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def walk(
    tokens: list[int], child: list[int], sibling: list[int], predicted: list[int], has_tree: bool, depth: int
) -> tuple[list[int], int, list[int]]:
    """The same walk, slowly: tokens, count and nodes without padding."""
    at, nodes = 0, []
    while has_tree and len(nodes) < depth:
        node = child[at]
        while node >= 0 and tokens[node] != predicted[at]:
            node = sibling[node]
        if node < 0:
            break
        nodes.append(node)
        at = node
    return [predicted[0], *(predicted[n] for n in nodes)], 1 + len(nodes), nodes


def verified(rows: list[tuple[list[int], list[int], list[int], list[int], bool]], depth: int) -> list[list[Any]]:
    tokens, child, sibling, predicted, has_tree = zip(*rows, strict=True)
    out = verify_tree(
        torch.tensor(tokens),
        torch.tensor(child, dtype=torch.int32),
        torch.tensor(sibling, dtype=torch.int32),
        torch.tensor(predicted),
        torch.tensor(has_tree),
        depth,
    )
    assert [t.dtype for t in out] == [torch.int64] * 3
    return [t.tolist() for t in out]


FLAT = ([1, -1, -1, -1], [-1, 2, 3, -1])
TWO_LEVELS = ([1, 3, 4, -1, -1], [-1, 2, -1, -1, -1])
DRAFTS = [0, 11, 12, 13, 14]


@pytest.mark.parametrize(
    ("links", "tokens", "predicted", "has_tree", "depth", "emitted", "count", "nodes"),
    [
        pytest.param(FLAT, [4, 1, 2, 3], [4, 4, 4, 4], True, 1, [4, 0], 1, [-1], id="no-child-fits"),
        pytest.param(FLAT, [4, 1, 2, 3], [1, 4, 4, 4], True, 1, [1, 4], 2, [1], id="first-child"),
        pytest.param(TWO_LEVELS, DRAFTS, [12, 0, 14, 0, 77], True, 2, [12, 14, 77], 3, [2, 4], id="whole-path"),
        pytest.param(TWO_LEVELS, DRAFTS, [11, 99, 0, 0, 0], True, 2, [11, 99, 0], 2, [1, -1], id="one-level"),
        pytest.param(TWO_LEVELS, DRAFTS, [50, 1, 1, 1, 1], True, 2, [50, 0, 0], 1, [-1, -1], id="none"),
        pytest.param(TWO_LEVELS, DRAFTS, [12, 0, 14, 0, 77], False, 2, [12, 0, 0], 1, [-1, -1], id="without-a-tree"),
    ],
)
def test_worked_trees(
    links: tuple[list[int], list[int]],
    tokens: list[int],
    predicted: list[int],
    has_tree: bool,
    depth: int,
    emitted: list[int],
    count: int,
    nodes: list[int],
) -> None:
    assert verified([(tokens, *links, predicted, has_tree)], depth) == [[emitted], [count], [nodes]]


GUIDED = ([1, -1, 4, 5, -1, -1], [-1, 2, 3, -1, -1, -1])


@pytest.mark.parametrize(
    ("drafts", "predicted", "has_tree", "text"),
    [
        pytest.param("axbdce", "b?c?f?", True, "bcf", id="b-then-c"),
        pytest.param("axbdce", "d??e?f", True, "def", id="d-then-e"),
        pytest.param("axbdce", "f?????", True, "f", id="f"),
        pytest.param("axbdxe", "b?c???", True, "bc", id="b-with-another-child"),
        pytest.param("axbdce", "b?c?f?", False, "b", id="without-a-tree"),
    ],
)
def test_worked_guided_tree(drafts: str, predicted: str, has_tree: bool, text: str) -> None:
    row = ([ord(c) for c in drafts], *GUIDED, [ord(c) for c in predicted], has_tree)
    tokens, counts, _ = verified([row], 2)
    assert "".join(chr(t) for t in tokens[0][: counts[0]]) == text


@pytest.mark.parametrize(
    ("targets", "drafts", "emitted"),
    [
        pytest.param([[1, 3, 2, 4]], [[1, 3, 4]], [[1, 3, 2]], id="one"),
        pytest.param([[1, 3], [4, 6]], [[1], [5]], [[1, 3], [4]], id="two-of-depth-1"),
        pytest.param([[1, 3, 2, 4], [4, 6, 5, 2]], [[1, 3, 4], [4, 7, 3]], [[1, 3, 2], [4, 6]], id="two-of-depth-3"),
        pytest.param(
            [[1, 3, 2, 4], [4, 6, 5, 2], [4, 3, 5, 7]],
            [[1, 3, 5], [4, 6, 5], [5, 7, 4]],
            [[1, 3, 2], [4, 6, 5, 2], [4]],
            id="three",
        ),
        pytest.param([[4, 6]], [[4]], [[4, 6]], id="all-accepted"),
        pytest.param([[1], [3], [3], [6]], [[], [], [], []], [[1], [3], [3], [6]], id="plain-decoding"),
    ],
)
def test_worked_chains(targets: list[list[int]], drafts: list[list[int]], emitted: list[list[int]]) -> None:
    size = len(targets[0])
    links = chain(1, size, torch.device("cpu"))
    child, sibling = links.first_child[0].tolist(), links.next_sibling[0].tolist()
    rows = [([7, *d], child, sibling, t, True) for d, t in zip(drafts, targets, strict=True)]
    tokens, counts, nodes = verified(rows, size - 1)
    assert counts == [len(e) for e in emitted]
    assert tokens == [e + [0] * (size - len(e)) for e in emitted]
    assert nodes == [list(range(1, len(e))) + [-1] * (size - len(e)) for e in emitted]


def test_plain_decoding_has_no_nodes() -> None:
    links = chain(3, 1, torch.device("cpu"))
    tokens, counts, nodes = verify_tree(
        links.tokens,
        links.first_child,
        links.next_sibling,
        torch.tensor([[5], [6], [7]]),
        torch.ones(3).bool(),
        0,
    )
    assert (tokens.tolist(), counts.tolist(), nodes.shape) == ([[5], [6], [7]], [1, 1, 1], (3, 0))


@pytest.mark.parametrize(("top_k", "nodes"), [(1, 6), (2, 12), (3, 40), (5, 33)])
def test_equals_a_slow_walk(top_k: int, nodes: int) -> None:
    rng, depth = random.Random(nodes), 4
    shape = kary(nodes, top_k, torch.device("cpu"))
    child, sibling = shape.first_child[0].tolist(), shape.next_sibling[0].tolist()
    family = [0] + [(i - 1) % top_k for i in range(1, nodes)]  # siblings carry distinct tokens
    rows = [
        (family, child, sibling, [rng.randint(0, top_k) for _ in range(nodes)], rng.random() < 0.9) for _ in range(60)
    ]
    got = verified(rows, depth)
    counts = set()
    for i, row in enumerate(rows):
        tokens, count, path = walk(*row, depth)
        counts.add(count)
        assert [out[i] for out in got] == [
            tokens + [0] * (depth + 1 - count),
            count,
            path + [-1] * (depth - len(path)),
        ]
    assert len(counts) >= 3


@pytest.mark.parametrize(("rows", "nodes", "depth"), [(1, 17, 4), (4, 17, 4), (1, 9, 2), (8, 33, 8)])
def test_a_chain_accepts_the_longest_common_prefix(rows: int, nodes: int, depth: int) -> None:
    torch.manual_seed(rows * nodes)
    links = chain(rows, nodes, torch.device("cpu"))
    drafts, predicted = torch.randint(0, 2, (2, rows, nodes))
    tokens, counts, _ = verify_tree(
        drafts, links.first_child, links.next_sibling, predicted, torch.ones(rows).bool(), depth
    )
    same = (drafts[:, 1 : depth + 1] == predicted[:, :depth]).long()
    assert torch.equal(counts, 1 + same.cumprod(1).sum(1))
    for row, count in enumerate(counts.tolist()):
        assert tokens[row, :count].tolist() == predicted[row, :count].tolist()


def test_a_node_that_no_link_leads_to_is_never_taken() -> None:
    row = ([0, 11, 12, 13], [1, 2, -1, -1], [-1] * 4, [13, 0, 0, 0], True)
    assert verified([row], 2) == [[[13, 0, 0]], [1], [[-1, -1]]]


@pytest.mark.parametrize(("top_k", "nodes", "depth"), [(1, 1, 0), (1, 6, 5), (2, 12, 3), (3, 40, 4), (10, 60, 6)])
def test_triton_equals_torch(top_k: int, nodes: int, depth: int) -> None:
    torch.manual_seed(nodes)
    rows = 12
    shape = kary(nodes, top_k, torch.device(DEVICE))
    family = torch.arange(-1, nodes - 1, device=DEVICE) % top_k
    given = (
        family.expand(rows, nodes).contiguous(),
        shape.first_child.repeat(rows, 1),
        shape.next_sibling.repeat(rows, 1),
        torch.randint(0, top_k + 1, (rows, nodes), device=DEVICE),
        torch.arange(rows, device=DEVICE) % 5 > 0,
        depth,
    )
    want = verify_tree_torch(*given)
    for ours, theirs in zip(verify_tree_triton(*given), want, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    assert nodes == 1 or len(set(want[1].tolist())) > 1


def test_triton_walk_ignores_nodes_that_no_link_leads_to() -> None:
    row = torch.tensor([[0, 11, 12, 13]], device=DEVICE)
    child = torch.tensor([[1, 2, -1, -1]], device=DEVICE, dtype=torch.int32)
    predicted = torch.tensor([[13, 0, 0, 0]], device=DEVICE)
    out = verify_tree_triton(row, child, torch.full_like(child, -1), predicted, torch.ones_like(row[0, :1]).bool(), 2)
    assert [t.tolist() for t in out] == [[[13, 0, 0]], [1], [[-1, -1]]]
