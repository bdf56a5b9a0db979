"""Attention rows summed in a fixed order: the same bits alone, in a chain, in a prompt chunk, in any company."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from attention_oracle import DEVICE, KERNEL_TYPES, NEAR, SCALE, Paged, filled_with_nan, queries
from torch import Tensor

from eagle3.ops.paged_blocks import Tile
from eagle3.ops.prompt_attention import prompt_attention, prompt_attention_triton
from eagle3.ops.steady import join_parts
from eagle3.ops.tree_attention import tree_attention, tree_attention_triton

LENGTH = 75  # of the request that is looked at; the first of the batch is another
PAGES = 6  # of 16 entries
HEADS, KV_HEADS, DIM = 2, 1, 12
SMALL = {"split_by_position": 32, "tile": Tile(32, 16, 4, 2)}  # three parts

Attend = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _placeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's products come from numpy's BLAS, where a row's bits depend on its place: not on a GPU."""

    def matmul(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return (a.astype(dtype)[:, :, None] * b.astype(dtype)[None]).sum(1)

    if DEVICE == "cpu":
        monkeypatch.setattr(np, "matmul", matmul)


class Rows:
    """One row a position for request 1 of a pool, attended to in one way or another."""

    def __init__(self, dtype: torch.dtype, window: int | None, tree: Attend, prompt: Attend) -> None:
        self.paged = Paged([LENGTH + 7, LENGTH], 16, PAGES, dtype, kv_heads=KV_HEADS, dim=DIM)
        self.q = [queries(n, dtype, heads=HEADS, dim=DIM) for n in (LENGTH + 7, LENGTH)]
        self.window, self.tree, self.prompt = window, tree, prompt

    def by_tree(self, first: int, rows: int, *, mates: bool, pages: int = PAGES, masked: bool = False) -> Tensor:
        """Rows first, first + 1 … as a chain, alone or behind the last rows of the other request."""
        asked = [(0, LENGTH + 7 - rows)] * mates + [(1, first)]
        q = torch.cat([self.q[b][at : at + rows] for b, at in asked])
        lens = torch.tensor([at + rows for _, at in asked], dtype=torch.int32)
        depth = torch.arange(rows, dtype=torch.int32).expand(len(asked), rows)
        mask = (2 << torch.arange(rows)).sub(1).int().expand(len(asked), rows)[..., None].contiguous()
        out = self._run(self.tree, q, lens, self._table(asked, pages), rows, depth, mask if masked else None)
        return out[-rows:]

    def by_prompt(self, first: int, rows: int, *, mates: bool, pages: int = PAGES) -> Tensor:
        """The same rows as a chunk of a prompt, behind a longer one of the other request."""
        asked = [(0, 3, 20)] * mates + [(1, first, rows)]
        q = torch.cat([self.q[b][at : at + n] for b, at, n in asked])
        lens = torch.tensor([at + n for _, at, n in asked], dtype=torch.int32)
        cu_q = torch.tensor([0, *(n for *_, n in asked)]).cumsum(0).to(torch.int32)
        longest = max(n for *_, n in asked)
        out = self._run(self.prompt, q, cu_q, lens, self._table([a[:2] for a in asked], pages), longest)
        return out[-rows:]

    def _table(self, asked: list[tuple[int, int]], pages: int) -> Tensor:
        return self.paged.table[[b for b, _ in asked], :pages].contiguous()

    def _run(self, attend: Attend, q: Tensor, *rest: object) -> Tensor:
        given = [x.to(DEVICE) if isinstance(x, Tensor) else x for x in (q, self.paged.kv, *rest)]
        with filled_with_nan():
            out = attend(*given, SCALE, self.window, KV_HEADS)
        assert out.dtype == q.dtype
        return out.cpu()


def check(rows: Rows, counts: Sequence[int]) -> None:
    """At the border of two parts, the second of which the first rows see nothing of, and at the end."""
    for first in (29, LENGTH - 5):
        alone = torch.cat([rows.by_tree(first + i, 1, mates=False) for i in range(5)])
        assert alone.isfinite().all()
        for count in counts:
            assert torch.equal(rows.by_tree(first, count, mates=count % 2 == 0), alone[:count])
            assert torch.equal(rows.by_prompt(first, count, mates=count % 2 == 1), alone[:count])
        assert torch.equal(rows.by_tree(first, 5, mates=True, masked=True), alone)
        pages = -(-(first + 5) // 16)  # a table no wider than it must be: fewer parts
        assert torch.equal(rows.by_tree(first, 5, mates=False, pages=pages), alone)
    whole = rows.by_prompt(0, LENGTH, mates=True)
    assert torch.equal(whole[-5:], alone)
    for first, count in ((0, 1), (1, 31), (32, 20), (52, 23)):
        assert torch.equal(rows.by_prompt(first, count, mates=False), whole[first : first + count])


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("dtype", KERNEL_TYPES)
def test_both_kernels_give_a_row_the_same_bits(dtype: torch.dtype, window: int | None) -> None:
    def tree(*given: object) -> Tensor:
        return tree_attention_triton(*given, **SMALL)  # type: ignore[arg-type]

    def prompt(*given: object) -> Tensor:
        return prompt_attention_triton(*given, **SMALL)  # type: ignore[arg-type]

    check(Rows(dtype, window, tree, prompt), range(1, 6) if DEVICE == "cuda" else (1, 4, 5))  # slow in the interpreter


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_steady_attention_gives_a_row_the_same_bits(dtype: torch.dtype, window: int | None) -> None:
    def tree(*given: object) -> Tensor:
        return tree_attention(*given, steady=True)  # type: ignore[arg-type]

    def prompt(*given: object) -> Tensor:
        return prompt_attention(*given, steady=True)  # type: ignore[arg-type]

    rows = Rows(dtype, window, tree, prompt)
    check(rows, range(1, 6))
    plain = Rows(dtype, window, tree_attention, prompt_attention)
    near = NEAR.get(dtype, 1e-12)
    for got, want in (
        (rows.by_prompt(0, LENGTH, mates=True), plain.by_prompt(0, LENGTH, mates=True)),
        (rows.by_tree(40, 5, mates=True), plain.by_tree(40, 5, mates=True)),
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=near)


def test_an_empty_request_gives_zeros() -> None:
    paged = Paged([0, 9], 4, 4, torch.float32, kv_heads=2)
    cu_q = torch.tensor([0, 1, 3], dtype=torch.int32)
    q = queries(3, torch.float32)
    where = [x.to(DEVICE) for x in (q, paged.kv, cu_q, paged.kv_lens, paged.table)]
    out = prompt_attention(*where, 2, SCALE, None, 2, steady=True)
    assert out[0].eq(0).all()
    assert out[1:].isfinite().all()


@pytest.mark.parametrize(("rows", "heads", "splits", "dim"), [(1, 1, 1, 16), (3, 3, 5, 80), (2, 4, 40, 64)])
def test_joined_parts_are_their_weighted_mean(rows: int, heads: int, splits: int, dim: int) -> None:
    make = torch.Generator().manual_seed(splits)
    parts = torch.randn(rows, heads, splits, dim, generator=make)
    logs = 3 * torch.randn(rows, heads, splits, generator=make)
    want = (torch.softmax(logs.double() * np.log(2.0), -1)[..., None] * parts.double()).sum(2)
    out = torch.full((rows, heads, dim), torch.nan, device=DEVICE)
    join_parts(parts.to(DEVICE), logs.to(DEVICE), out)
    torch.testing.assert_close(out.double().cpu(), want, rtol=0, atol=1e-5)


def test_a_part_that_holds_nothing_changes_no_bit() -> None:
    parts, logs = torch.randn(2, 3, 2, 16), torch.randn(2, 3, 2)
    gaps, none = torch.full((2, 3, 5, 16), torch.nan), torch.full((2, 3, 5), -torch.inf)
    gaps[:, :, 1:4:2], none[:, :, 1:4:2] = parts, logs
    tight, loose = torch.empty(2, 3, 16, device=DEVICE), torch.empty(2, 3, 16, device=DEVICE)
    join_parts(parts.to(DEVICE), logs.to(DEVICE), tight)
    join_parts(gaps.to(DEVICE), none.to(DEVICE), loose)
    assert torch.equal(tight, loose)
