import pytest
import torch

from eagle3.ops.log_mass import log_mass_torch, log_mass_triton
from eagle3.ops.select import CHUNK

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [1, 40, CHUNK, 2 * CHUNK + 5])
def test_triton_equals_torch(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (8 * torch.randn(5, size + 1, device=DEVICE)).to(dtype)[:, :size]
    logits[2, : size // 2] = float("-inf")
    rows = torch.tensor([4, 0, 2, 2], device=DEVICE)
    got = log_mass_triton(logits, rows)
    torch.testing.assert_close(got, log_mass_torch(logits, rows), rtol=1e-6, atol=1e-6)
    assert torch.equal(got[2], got[3])
    assert torch.equal(log_mass_triton(logits, rows[1:2]), got[1:2]), "whatever is beside it"


def test_a_certain_token_has_a_log_probability_of_zero() -> None:
    logits = torch.tensor([[0.0, 1e4, 0.0]], dtype=torch.float64)
    assert (logits[0, 1] - log_mass_torch(logits, torch.tensor([0]))).item() == 0
