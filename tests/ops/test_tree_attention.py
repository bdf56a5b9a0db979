import pytest
import torch
from attention_oracle import (
    DEVICE,
    KERNEL_TYPES,
    KV_HEADS,
    NEAR,
    SCALE,
    Paged,
    assert_same_bits,
    filled_with_nan,
    queries,
)
from torch import Tensor

from eagle3.ops.paged_blocks import Tile
from eagle3.ops.parts import choose_splits
from eagle3.ops.tree_attention import (
    tree_attention,
    tree_attention_torch,
    tree_attention_triton,
)


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
    return tree_attention_torch(q, paged.kv, paged.kv_lens, paged.table, tail, depth, mask, SCALE, window, KV_HEADS)


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


def run_kernel(
    paged: Paged, q: Tensor, tail: int, depth: Tensor, mask: Tensor | None, window: int | None, **how: object
) -> Tensor:
    """The kernels' answer in float64 on the CPU, for a pool that is one layer of three and a q of wider rows."""
    kv = torch.full((3, *paged.kv.shape), torch.nan, dtype=paged.kv.dtype, device=DEVICE)
    kv[1] = paged.kv
    wide = torch.full((q.shape[0], q.shape[1] + 2, q.shape[2]), torch.nan, dtype=q.dtype, device=DEVICE)
    wide[:, : q.shape[1]] = q
    n_kv = paged.k[0].shape[1]
    where = [x.to(DEVICE) for x in (paged.kv_lens, paged.table)]
    with filled_with_nan():
        out = tree_attention_triton(
            wide[:, : q.shape[1]], kv[1], *where, tail, depth.to(DEVICE), None if mask is None else mask.to(DEVICE),
            SCALE, window, n_kv, **how,  # type: ignore[arg-type]
        )  # fmt: skip
    assert out.dtype == q.dtype
    return out.double().cpu()


def check_kernel(
    paged: Paged, q: Tensor, tail: int, depth: Tensor, mask: Tensor | None, window: int | None, **how: object
) -> None:
    assert_near(run_kernel(paged, q, tail, depth, mask, window, **how), paged, q, tail, depth, mask, window)


def assert_near(
    got: Tensor, paged: Paged, q: Tensor, tail: int, depth: Tensor, mask: Tensor | None, window: int | None
) -> None:
    """Against torch in float64 over all rows, which the tests above check against the oracle."""
    n_kv = paged.k[0].shape[1]
    want = tree_attention_torch(
        q.double(), paged.kv.double(), paged.kv_lens, paged.table, tail, depth, mask, SCALE, window, n_kv
    )
    torch.testing.assert_close(got, want, rtol=0, atol=NEAR[q.dtype])


@pytest.mark.parametrize("dtype", KERNEL_TYPES)
@pytest.mark.parametrize(
    ("page", "heads", "kv_heads", "dim", "tail", "rows", "window"),
    [
        (1, 3, 1, 64, 6, 6, None),
        (2, 4, 2, 80, 7, 3, 5),
        (4, 2, 2, 16, 70, 5, None),
        (8, 4, 1, 96, 40, 4, 30),
        (16, 2, 1, 128, 33, 9, 2),
        (32, 2, 1, 64, 96, 30, None),
        (64, 8, 2, 5, 1, 1, None),
        (128, 3, 1, 256, 12, 12, 60),
    ],
)
def test_kernel_on_trees(
    page: int, heads: int, kv_heads: int, dim: int, tail: int, rows: int, window: int | None, dtype: torch.dtype
) -> None:
    kv_lens = [tail + 69, tail]
    paged = Paged(kv_lens, page, -(-(tail + 160) // page), dtype, kv_heads=kv_heads, dim=dim)
    _, depth, mask = random_trees(2, tail)
    q = queries(2 * rows, dtype, heads=heads, dim=dim)
    check_kernel(paged, q, tail, depth, mask[:, tail - rows :].contiguous(), window)


@pytest.mark.parametrize("window", [None, 3, 70])
@pytest.mark.parametrize(("tail", "rows"), [(1, 1), (5, 5), (5, 2)])
def test_kernel_without_a_mask(window: int | None, tail: int, rows: int) -> None:
    paged = Paged([tail + 66, tail], 16, 8, torch.float32)
    depth = torch.arange(tail, dtype=torch.int32).expand(2, tail)
    check_kernel(paged, queries(2 * rows, torch.float32), tail, depth, None, window)


def test_kernel_against_the_oracle_itself() -> None:
    paged = Paged([40], 4, 12, torch.float32)
    paths, depth, mask = random_trees(1, 34)
    q = queries(4, torch.float32)
    out = run_kernel(paged, q, 34, depth, mask[:, 30:].contiguous(), None, splits=2)
    for row in range(4):
        seen = [*range(6), *(6 + column for column in paths[0][30 + row])]
        torch.testing.assert_close(out[row], paged.attend(0, q[row].double(), seen), rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", [{"splits": 2}, {"splits": 5}, {"split_by_position": 64}], ids=str)
@pytest.mark.parametrize("window", [None, 20])
def test_parts_make_the_whole(how: dict[str, int], window: int | None) -> None:
    # the second and third leave parts empty, in the last request all of them
    paged = Paged([110, 9, 0], 8, 16, torch.float32)
    _, depth, mask = random_trees(3, 4)
    check_kernel(paged, queries(12, torch.float32), 4, depth, mask, window, **how)


@pytest.mark.parametrize("dtype", KERNEL_TYPES)
def test_cut_by_position_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    how = {"split_by_position": 64}
    paged = Paged([100, 131], 16, 12, dtype)
    q = queries(10, dtype)
    chain = run_kernel(paged, q, 5, torch.arange(5, dtype=torch.int32).expand(2, 5), None, None, **how)
    for row in (0, 2, 4):  # the second request's rows one at a time, alone, as plain decoding has them
        paged.kv_lens = torch.tensor([127 + row], dtype=torch.int32)
        alone = Paged.__new__(Paged)
        alone.__dict__ = {**paged.__dict__, "table": paged.table[1:]}
        depth = torch.zeros(1, 1, dtype=torch.int32)
        got = run_kernel(alone, q[5 + row, None], 1, depth, None, None, **how)[0]
        assert_same_bits(got, chain[5 + row], dtype)


def test_kernel_reads_neither_bits_past_the_tail_nor_entries_past_the_end() -> None:
    paged = Paged([36], 4, 12, torch.float32)  # NaN past the end
    _, depth, mask = random_trees(1, 6)
    q = queries(6, torch.float32)
    clean = run_kernel(paged, q, 6, depth, mask, None)
    paged.table[0, 9:] = 2**30  # pages past the end: to follow one would be a fault
    assert torch.equal(run_kernel(paged, q, 6, depth, mask | ~0b111111, None), clean)
    assert clean.isfinite().all()


@pytest.mark.parametrize(("window", "splits"), [(None, 2), (50, 1)])
@pytest.mark.parametrize("tile", [Tile(16, 32, 4, 2), Tile(32, 64, 4, 2)], ids=["few", "many"])
def test_blocks_that_lie_in_a_page_may_be_copied_whole(window: int | None, splits: int, tile: Tile) -> None:
    dtype = torch.float16
    paged = Paged([230, 70, 0], 64, 8, dtype, dim=64)
    _, depth, mask = random_trees(3, 6)
    q = queries(18, dtype, dim=64)
    args = paged, q, 6, depth, mask, window
    whole, apart = (run_kernel(*args, tile=tile, splits=splits, by_page=by_page) for by_page in (True, False))
    assert_near(whole, *args)
    assert torch.equal(whole, apart)


def test_splits_follow_from_shapes() -> None:
    wide, narrow = Tile(128, 64, 8, 3), Tile(16, 64, 4, 2)
    assert choose_splits(16, 1024, 132, wide) == 4  # no part shorter than 256
    assert choose_splits(16, 32768, 132, wide) == 8  # 128 of 132
    assert choose_splits(256, 4096, 132, wide) == 1  # the GPU is full: no second launch
    assert choose_splits(144, 32768, 132, wide) > 1  # two waves, the second nearly empty
    assert choose_splits(8, 1024, 132, narrow) == 16  # one block each


@pytest.mark.parametrize("dtype", [*KERNEL_TYPES, torch.float64])
def test_the_dispatch_answers_in_every_type(dtype: torch.dtype) -> None:
    paged = Paged([20], 4, 8, dtype)
    _, depth, mask = random_trees(1, 6)
    args = [x.to(DEVICE) for x in (queries(6, dtype), paged.kv, paged.kv_lens, paged.table)]
    out = tree_attention(*args, 6, depth.to(DEVICE), mask.to(DEVICE), SCALE, None, KV_HEADS)
    want = tree_attention_torch(
        queries(6, dtype).double(), paged.kv.double(), paged.kv_lens, paged.table, 6, depth, mask, SCALE, None, KV_HEADS
    )
    torch.testing.assert_close(out.double().cpu(), want, rtol=0, atol=NEAR.get(dtype, 1e-12))
