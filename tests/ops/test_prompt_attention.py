import pytest
import torch
from attention_oracle import KV_HEADS, SCALE, Paged, queries

from eagle3.ops.prompt_attention import prompt_attention_torch


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize(
    ("kv_lens", "q_lens"),
    [([9], [9]), ([9], [1]), ([11, 3, 16], [4, 3, 1]), ([1, 13], [1, 6])],
    ids=["whole", "last-row", "ragged", "first-row"],
)
def test_each_row_sees_what_is_before_it(
    page: int, window: int | None, kv_lens: list[int], q_lens: list[int]
) -> None:
    paged = Paged(kv_lens, page, pages_each=-(-20 // page))
    q = queries(sum(q_lens))
    cu_q = torch.tensor([0, *q_lens]).cumsum(0).to(torch.int32)
    out = prompt_attention_torch(
        q, paged.kv, cu_q, paged.kv_lens, paged.table, max(q_lens), SCALE, window, KV_HEADS
    )
    row = 0
    for b, (kv_len, q_len) in enumerate(zip(kv_lens, q_lens, strict=True)):
        for at in range(kv_len - q_len, kv_len):
            seen = range(0 if window is None else max(0, at - window + 1), at + 1)
            torch.testing.assert_close(out[row], paged.attend(b, q[row], seen), rtol=0, atol=1e-12)
            row += 1


def test_rows_past_the_last_request_and_longer_bounds_change_nothing() -> None:
    paged = Paged([7, 5], 4, pages_each=4)
    q, cu_q = queries(9), torch.tensor([0, 2, 6], dtype=torch.int32)
    tight = prompt_attention_torch(
        q[:6], paged.kv, cu_q, paged.kv_lens, paged.table, 4, SCALE, None, KV_HEADS
    )
    loose = prompt_attention_torch(q, paged.kv, cu_q, paged.kv_lens, paged.table, 8, SCALE, None, KV_HEADS)
    torch.testing.assert_close(loose[:6], tight, rtol=0, atol=1e-12)
    assert loose.isfinite().all()


def test_an_empty_request_gives_zeros_beside_a_real_one() -> None:
    paged = Paged([0, 5], 4, pages_each=2)
    q, cu_q = queries(3), torch.tensor([0, 1, 3], dtype=torch.int32)
    out = prompt_attention_torch(q, paged.kv, cu_q, paged.kv_lens, paged.table, 2, SCALE, None, KV_HEADS)
    assert out[0].eq(0).all()
    torch.testing.assert_close(out[2], paged.attend(1, q[2], range(5)), rtol=0, atol=1e-12)
