import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from eagle3.ops.rope import rope_torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_transformers(dtype: torch.dtype) -> None:
    q, k = torch.randn(5, 3, 8, dtype=dtype), torch.randn(5, 2, 8, dtype=dtype)
    angles = torch.randn(5, 4, dtype=dtype)
    cos, sin = angles.cos(), angles.sin()
    full_cos, full_sin = torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None]
    q_theirs, k_theirs = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], full_cos, full_sin)
    both = rope_torch(torch.cat((q, k), dim=1), cos, sin)
    torch.testing.assert_close(both[:, :3], q_theirs[0].transpose(0, 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(both[:, 3:], k_theirs[0].transpose(0, 1), rtol=0, atol=1e-6)


def test_half_precision_is_turned_in_the_tables_type() -> None:
    x, angles = torch.randn(4, 2, 6).bfloat16(), torch.randn(4, 3)
    out = rope_torch(x, angles.cos(), angles.sin())
    assert torch.equal(out, rope_torch(x.float(), angles.cos(), angles.sin()).bfloat16())


def test_the_input_is_left_alone_also_where_it_is_a_slice() -> None:
    fused, angles = torch.randn(4, 5, 6), torch.randn(4, 3)
    before = fused.clone()
    out = rope_torch(fused[:, :3], angles.cos(), angles.sin())
    assert torch.equal(fused, before)
    assert torch.equal(out, rope_torch(fused[:, :3].clone(), angles.cos(), angles.sin()))
    assert not torch.equal(out, fused[:, :3])
