import pytest
import torch
from attention_oracle import KV_HEADS, SCALE, Paged, queries
from torch import Tensor

from eagle3.ops.tree_attention import tree_attention_torch


def random_trees(batch: int, tail: int) -> tuple[list[list[list[int]]], Tensor, Tensor]:
    """Per request and column its path from the root; depth [B, tail]; mask [B, tail, W] i32."""
    maker = torch.Generator().manual_seed(tail)
    paths: list[list[list[int]]] = []
    for _ in range(batch):
        tree: list[list[int]] = [[0]]
        for node in range(1, tail):
            tree.append([*tree[int(torch.randint(0, node, (1,), generator=maker))], node])
        paths.append(tree)
    depth = torch.tensor([[len(path) - 1 for path in tree] for tree in paths], dtype=torch.int32)
    mask = torch.zeros(batch, tail, -(-tail // 32), dtype=torch.int64)
    for b, tree in enumerate(paths):
        for node, path in enumerate(tree):
            for seen in path:
                mask[b, node, seen // 32] |= 1 << (seen % 32)
    mask = torch.where(mask >= 2**31, mask - 2**32, mask).to(torch.int32)  # bit 31 is the sign
    return paths, depth, mask


def run(paged: Paged, q: Tensor, tail: int, depth: Tensor, mask: Tensor | None, window: int | None) -> Tensor:
    return tree_attention_torch(
        q, paged.kv, paged.kv_lens, paged.table, tail, depth, mask, SCALE, window, KV_HEADS
    )


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 2, 5])
@pytest.mark.parametrize(("tail", "rows"), [(1, 1), (6, 6), (7, 3), (40, 4), (64, 32)])
def test_each_row_sees_the_prefix_and_its_path(page: int, window: int | None, tail: int, rows: int) -> None:
    kv_lens = [tail + 9, tail, tail + 2]  # the second has no prefix
    paged = Paged(kv_lens, page, pages_each=-(-(tail + 20) // page))
    paths, depth, mask = random_trees(3, tail)
    q = queries(3 * rows)
    out = run(paged, q, tail, depth, mask[:, tail - rows :].contiguous(), window)
    for b, kv_len in enumerate(kv_lens):
        base = kv_len - tail
        for i in range(0, rows, max(1, rows // 4)):
            path = paths[b][tail - rows + i]
            place = {at: at for at in range(base)} | {base + c: base + depth[b, c].item() for c in path}
            own = base + len(path) - 1
            seen = [entry for entry, at in place.items() if window is None or own - at < window]
            expected = paged.attend(b, q[b * rows + i], seen)
            torch.testing.assert_close(out[b * rows + i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("tail", "rows"), [(1, 1), (5, 5), (5, 1), (5, 2)])
def test_without_a_mask_the_tail_is_causal(window: int | None, tail: int, rows: int) -> None:
    kv_lens = [tail + 6, tail]
    paged = Paged(kv_lens, 4, pages_each=4)
    q = queries(2 * rows)
    depth = torch.arange(tail, dtype=torch.int32).expand(2, tail)
    out = run(paged, q, tail, depth, None, window).view(2, rows, *q.shape[1:])
    for b, kv_len in enumerate(kv_lens):
        for i in range(rows):
            at = kv_len - rows + i
            seen = range(0 if window is None else max(0, at - window + 1), at + 1)
            torch.testing.assert_close(out[b, i], paged.attend(b, q[b * rows + i], seen), rtol=0, atol=1e-12)


def test_mask_bits_past_the_tail_are_not_read() -> None:
    paged = Paged([12], 4, pages_each=4)
    _, depth, mask = random_trees(1, 6)
    q = queries(6)
    clean = run(paged, q, 6, depth, mask, None)
    dirty = run(paged, q, 6, depth, mask | ~0b111111, None)
    assert torch.equal(clean, dirty)


@pytest.mark.parametrize("with_mask", [False, True])
def test_an_empty_request_gives_zeros_beside_a_real_one(with_mask: bool) -> None:
    paged = Paged([0, 9], 4, pages_each=4)
    _, depth, mask = random_trees(2, 3)
    q = queries(6)
    out = run(paged, q, 3, depth, mask if with_mask else None, None)
    assert out[:3].eq(0).all()
    torch.testing.assert_close(out[3], paged.attend(1, q[3], range(7)), rtol=0, atol=1e-12)


def test_half_precision_stays_near_float64() -> None:
    wide = Paged([20], 4, pages_each=8)
    _, depth, mask = random_trees(1, 6)
    expected = run(wide, queries(6), 6, depth, mask, None)
    narrow = Paged([20], 4, pages_each=8)
    narrow.kv = narrow.kv.bfloat16()
    out = run(narrow, queries(6).bfloat16(), 6, depth, mask, None)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, rtol=0.05, atol=0.05)
