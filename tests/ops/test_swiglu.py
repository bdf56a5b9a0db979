import torch

from eagle3.ops.swiglu import swiglu_torch


def test_the_first_half_gates_the_second() -> None:
    gate, up = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    out = swiglu_torch(torch.cat((gate, up), dim=1))
    torch.testing.assert_close(out, gate / (1 + (-gate).exp()) * up)
