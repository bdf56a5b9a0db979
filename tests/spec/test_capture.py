"""What the head reads of the target: the outputs of the layers named, residual included, in their order."""

import pytest
import torch

from eagle3.config.shape import DraftShape
from eagle3.errors import CapacityError
from eagle3.spec.capture import Capture
from helpers.pairs import SMALL, engine, facts, random_head, random_target
from oracles.dense import target_pass

CPU = torch.device("cpu")


def test_blocks_follow_the_order_asked_for() -> None:
    capture = Capture((5, 2, -1), rows=6, hidden=2, dtype=torch.float64, device=CPU)
    address = capture.hidden.data_ptr()
    for layer in (0, 2, 5):
        value = torch.full((3, 2), float(layer), dtype=torch.float64)
        capture(layer, value, torch.ones_like(value))
    capture(-1, torch.full((3, 2), 9.0, dtype=torch.float64), None)
    assert capture.hidden[:3].tolist() == [[6, 6, 3, 3, 9, 9]] * 3
    assert not capture.hidden[3:].any()
    assert capture.hidden.data_ptr() == address


@pytest.mark.parametrize(
    ("tokens", "batch", "seq", "nodes", "rows"), [(2048, 8, 4096, 5, 2088), (8192, 2, 64, 61, 250), (64, 7, 32, 1, 71)]
)
def test_rows(tokens: int, batch: int, seq: int, nodes: int, rows: int) -> None:
    assert DraftShape(0, 1, nodes).capture_rows(tokens, batch, seq) == rows


def test_too_small_a_buffer_is_an_error() -> None:
    capture = Capture((0,), rows=2, hidden=2, dtype=torch.float64, device=CPU)
    with pytest.raises(CapacityError, match="3 rows"):
        capture(0, torch.zeros(3, 2, dtype=torch.float64), None)


def test_a_layer_is_asked_for_once() -> None:
    with pytest.raises(AssertionError):
        Capture((1, 1), rows=2, hidden=2, dtype=torch.float64, device=CPU)


@pytest.mark.parametrize("layers", [SMALL, (2, 0, 3)])
def test_the_prompt_is_captured_after_each_layer(layers: tuple[int, ...]) -> None:
    target = random_target(facts(16, hidden=16, layers=4))
    built = engine(target, (random_head(target), layers), DraftShape(2, 1, 3), batch=2, max_seq_len=32)
    prompts = [[1, 2, 3, 4], [9, 8]]
    for prompt in prompts:
        built.add(prompt, max_new_tokens=4)
    built.step()
    spec = built.runner.worker.spec
    assert spec is not None
    want = [torch.cat([torch.from_numpy(target_pass(target, p)[0][i]) for i in layers], dim=1) for p in prompts]
    torch.testing.assert_close(spec.capture.hidden[:6], torch.cat(want))
    built.abort_all()
