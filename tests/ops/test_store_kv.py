import pytest
import torch

from eagle3.ops.store_kv import store_kv_torch


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_land_in_their_entries_keys_first_and_nothing_else_moves(page: int, dtype: torch.dtype) -> None:
    kv = torch.full((48 // page, page, 2 * 2 * 3), torch.nan, dtype=dtype)
    k, v = torch.randn(3, 2, 3, dtype=torch.float64), torch.randn(3, 2, 3, dtype=torch.float64)
    at = [17, 4, 30]
    store_kv_torch(k, v, kv, torch.tensor(at))
    flat = kv.view(48, 2, 2, 3)
    for row, entry in enumerate(at):
        assert torch.equal(flat[entry, 0], k[row].to(dtype))
        assert torch.equal(flat[entry, 1], v[row].to(dtype))
    untouched = [entry for entry in range(48) if entry not in at]
    assert flat[untouched].isnan().all()


def test_heads_cut_from_a_fused_projection_are_stored_alike() -> None:
    fused = torch.randn(2, 7, 3)  # 3 query heads, then 2 of keys, 2 of values
    kv = torch.zeros(2, 4, 12)
    store_kv_torch(fused[:, 3:5], fused[:, 5:], kv, torch.tensor([6, 1]))
    assert torch.equal(kv.view(8, 12)[6], fused[0, 3:].flatten())
    assert torch.equal(kv.view(8, 12)[1], fused[1, 3:].flatten())
