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

from eagle3.ops.prompt_attention import prompt_attention, prompt_attention_torch, prompt_attention_triton


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize(
    ("kv_lens", "q_lens"),
    [([9], [9]), ([9], [1]), ([11, 3, 16], [4, 3, 1]), ([1, 13], [1, 6])],
    ids=["whole", "last-row", "ragged", "first-row"],
)
def test_each_row_sees_what_is_before_it(page: int, window: int | None, kv_lens: list[int], q_lens: list[int]) -> None:
    paged = Paged(kv_lens, page, pages_each=-(-20 // page))
    q = queries(sum(q_lens))
    cu_q = torch.tensor([0, *q_lens]).cumsum(0).to(torch.int32)
    out = prompt_attention_torch(q, paged.kv, cu_q, paged.kv_lens, paged.table, max(q_lens), SCALE, window, KV_HEADS)
    row = 0
    for b, (kv_len, q_len) in enumerate(zip(kv_lens, q_lens, strict=True)):
        for at in range(kv_len - q_len, kv_len):
            seen = range(0 if window is None else max(0, at - window + 1), at + 1)
            torch.testing.assert_close(out[row], paged.attend(b, q[row], seen), rtol=0, atol=1e-12)
            row += 1


def test_rows_past_the_last_request_and_longer_bounds_change_nothing() -> None:
    paged = Paged([7, 5], 4, pages_each=4)
    q, cu_q = queries(9), torch.tensor([0, 2, 6], dtype=torch.int32)
    tight = prompt_attention_torch(q[:6], paged.kv, cu_q, paged.kv_lens, paged.table, 4, SCALE, None, KV_HEADS)
    loose = prompt_attention_torch(q, paged.kv, cu_q, paged.kv_lens, paged.table, 8, SCALE, None, KV_HEADS)
    torch.testing.assert_close(loose[:6], tight, rtol=0, atol=1e-12)
    assert loose.isfinite().all()


def test_an_empty_request_gives_zeros_beside_a_real_one() -> None:
    paged = Paged([0, 5], 4, pages_each=2)
    q, cu_q = queries(3), torch.tensor([0, 1, 3], dtype=torch.int32)
    out = prompt_attention_torch(q, paged.kv, cu_q, paged.kv_lens, paged.table, 2, SCALE, None, KV_HEADS)
    assert out[0].eq(0).all()
    torch.testing.assert_close(out[2], paged.attend(1, q[2], range(5)), rtol=0, atol=1e-12)


def run_kernel(paged: Paged, q: Tensor, cu_q: Tensor, max_q: int, window: int | None, **how: int) -> Tensor:
    """The kernel's answer in float64 on the CPU, for a pool that is one layer of three and a q of wider rows."""
    kv = torch.full((3, *paged.kv.shape), torch.nan, dtype=paged.kv.dtype, device=DEVICE)
    kv[1] = paged.kv
    wide = torch.full((q.shape[0], q.shape[1] + 2, q.shape[2]), torch.nan, dtype=q.dtype, device=DEVICE)
    wide[:, : q.shape[1]] = q
    where = [x.to(DEVICE) for x in (cu_q, paged.kv_lens, paged.table)]
    n_kv = paged.k[0].shape[1]
    with filled_with_nan():
        out = prompt_attention_triton(wide[:, : q.shape[1]], kv[1], *where, max_q, SCALE, window, n_kv, **how)
    assert out.dtype == q.dtype
    return out.double().cpu()


def check_kernel(paged: Paged, q: Tensor, q_lens: list[int], window: int | None) -> None:
    """Against torch in float64, which the tests above check against the oracle; one row past the last request."""
    cu_q, n_kv = torch.tensor([0, *q_lens]).cumsum(0).to(torch.int32), paged.k[0].shape[1]
    want = prompt_attention_torch(
        q.double(), paged.kv.double(), cu_q, paged.kv_lens, paged.table, max(q_lens), SCALE, window, n_kv
    )
    got = run_kernel(paged, q, cu_q, max(q_lens) + 3, window)
    torch.testing.assert_close(got[: sum(q_lens)], want[: sum(q_lens)], rtol=0, atol=NEAR[q.dtype])
    assert got[sum(q_lens) :].eq(0).all()


@pytest.mark.parametrize("dtype", KERNEL_TYPES)
@pytest.mark.parametrize(
    ("page", "heads", "kv_heads", "dim", "window"),
    [
        (1, 3, 1, 64, None),
        (2, 4, 2, 80, 5),
        (4, 2, 2, 16, None),
        (8, 4, 1, 96, 70),
        (16, 2, 1, 128, 1),
        (32, 2, 1, 64, 33),
        (64, 8, 2, 5, None),
        (128, 3, 1, 256, 40),
    ],
)
def test_kernel_on_ragged_chunks(
    page: int, heads: int, kv_heads: int, dim: int, window: int | None, dtype: torch.dtype
) -> None:
    # a whole prompt, the last chunk of a long one, nothing, a single row
    kv_lens, q_lens = [13, 80, 0, 5], [13, 19, 1, 1]
    paged = Paged(kv_lens, page, -(-140 // page), dtype, kv_heads=kv_heads, dim=dim)
    check_kernel(paged, queries(35, dtype, heads=heads, dim=dim), q_lens, window)


def test_kernel_against_the_oracle_itself() -> None:
    paged = Paged([40], 4, 12, torch.float32)
    q = queries(36, torch.float32)
    out = run_kernel(paged, q, torch.tensor([0, 36], dtype=torch.int32), 36, 9)
    for row in (0, 3, 9, 35):
        seen = range(max(0, row - 4), row + 5)
        torch.testing.assert_close(out[row], paged.attend(0, q[row].double(), seen), rtol=0, atol=1e-5)


def test_kernel_reads_no_page_past_the_end() -> None:
    paged = Paged([36], 4, 12, torch.float32)
    q, cu_q = queries(7, torch.float32), torch.tensor([0, 7], dtype=torch.int32)
    clean = run_kernel(paged, q, cu_q, 7, None)
    paged.table[0, 9:] = 2**30  # to follow one would be a fault
    assert torch.equal(run_kernel(paged, q, cu_q, 7, None), clean)
    assert clean.isfinite().all()


@pytest.mark.parametrize("dtype", KERNEL_TYPES)
def test_steady_a_row_has_the_same_bits_wherever_its_chunk_begins(dtype: torch.dtype) -> None:
    paged = Paged([90], 16, 8, dtype)
    q = queries(40, dtype)
    whole = run_kernel(paged, q, torch.tensor([0, 40], dtype=torch.int32), 40, None, split_by_position=64)
    last = run_kernel(paged, q[27:], torch.tensor([0, 13], dtype=torch.int32), 13, None, split_by_position=64)
    assert_same_bits(last, whole[27:], dtype)


@pytest.mark.parametrize("dtype", [*KERNEL_TYPES, torch.float64])
def test_the_dispatch_answers_in_every_type(dtype: torch.dtype) -> None:
    paged, q, cu_q = Paged([20], 4, 8, dtype), queries(6, dtype), torch.tensor([0, 6], dtype=torch.int32)
    args = [x.to(DEVICE) for x in (q, paged.kv, cu_q, paged.kv_lens, paged.table)]
    out = prompt_attention(*args, 6, SCALE, None, KV_HEADS)
    want = prompt_attention_torch(
        q.double(), paged.kv.double(), cu_q, paged.kv_lens, paged.table, 6, SCALE, None, KV_HEADS
    )
    torch.testing.assert_close(out.double().cpu(), want, rtol=0, atol=NEAR.get(dtype, 1e-12))
