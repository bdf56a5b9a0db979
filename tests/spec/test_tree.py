import pytest
import torch

from eagle3.ops.build_tree import layout
from eagle3.spec.tree import chain, kary

CPU = torch.device("cpu")


def test_chain_links() -> None:
    tree = chain(2, 6, CPU)
    assert tree.tokens.tolist() == [[0] * 6] * 2
    assert tree.depth.tolist() == [list(range(6))] * 2
    assert tree.mask[:, :, 0].tolist() == [[1, 3, 7, 15, 31, 63]] * 2
    assert tree.first_child.tolist() == [[1, 2, 3, 4, 5, -1]] * 2
    assert tree.next_sibling.tolist() == [[-1] * 6] * 2


@pytest.mark.parametrize("nodes", [1, 2, 31, 32, 33, 70])
def test_chain_equals_its_layout(nodes: int) -> None:
    tree = chain(3, nodes, CPU)
    want = layout((torch.arange(nodes) - 1).expand(3, -1), nodes - 1)
    assert all(torch.equal(a, b) for a, b in zip(tree.tensors()[1:], want, strict=True))
    assert [t.dtype for t in tree.tensors()] == [torch.int64] + [torch.int32] * 4
    assert tree.mask.shape == (3, nodes, -(-nodes // 32))
    assert all(t.is_contiguous() for t in tree.tensors())


@pytest.mark.parametrize(
    ("nodes", "top_k", "depth", "mask"),
    [
        pytest.param(7, 2, [0, 1, 1, 2, 2, 2, 2], [1, 3, 5, 11, 19, 37, 69], id="binary"),
        pytest.param(7, 1, [0, 1, 2, 3, 4, 5, 6], [1, 3, 7, 15, 31, 63, 127], id="chain"),
        pytest.param(
            13,
            3,
            [0, 1, 1, 1] + [2] * 9,
            [1, 3, 5, 9, 19, 35, 67, 133, 261, 517, 1033, 2057, 4105],
            id="ternary",
        ),
        pytest.param(1, 4, [0], [1], id="root-alone"),
    ],
)
def test_kary(nodes: int, top_k: int, depth: list[int], mask: list[int]) -> None:
    tree = kary(nodes, top_k, CPU)
    assert tree.depth.tolist() == [depth]
    assert tree.mask.flatten().tolist() == mask


def test_kary_links() -> None:
    tree = kary(7, 2, CPU)
    assert tree.first_child.tolist() == [[1, 3, 5, -1, -1, -1, -1]]
    assert tree.next_sibling.tolist() == [[-1, 2, -1, 4, -1, 6, -1]]
