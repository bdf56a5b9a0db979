from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def whole_products() -> Iterator[None]:
    """Products of float32 in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    assert not torch.backends.cuda.matmul.allow_tf32
    yield
    torch.set_float32_matmul_precision(before)
