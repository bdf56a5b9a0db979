import math

import pytest
import torch
from torch import Tensor

from eagle3.ops.grow import Grown, History, grow_torch, grow_triton, start_torch, start_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def blank(requests: int, top_k: int, depth: int) -> History:
    """A history that is filled with what nobody may read."""
    out = History.empty(requests, top_k, depth, torch.device(DEVICE))
    out.tokens.fill_(-7)
    out.scores.fill_(math.nan)
    out.kept.fill_(-9)
    return out


def test_worked_example() -> None:
    # nodes score -1 and -2; children -1.1 -9 and -2.05 -2.2: the best are the first of each
    history = blank(1, 2, 3)
    scores = torch.tensor([[-0.125, -8.0], [-0.25, -0.5]], device=DEVICE)
    tokens = torch.tensor([[10, 11], [12, 13]], device=DEVICE)
    above = torch.tensor([[-1.0, -2.0]], device=DEVICE)
    feedback = torch.tensor([[5.0, 6.0], [7.0, 8.0]], device=DEVICE)
    mask = torch.tensor([[[1], [2]]], dtype=torch.int32, device=DEVICE)
    got = grow_torch(scores, tokens, above, feedback, mask, history, 1)
    assert got.tokens.tolist() == [[10, 12]]
    assert got.scores.tolist() == [[-1.125, -2.25]]
    assert got.feedback is not None
    assert got.feedback.tolist() == [[[5.0, 6.0], [7.0, 8.0]]]
    assert got.mask is not None
    assert got.mask.tolist() == [[[1 | 4], [2 | 8]]]  # entries 2 and 3 are the new nodes'
    assert history.tokens.tolist() == [[-7, -7, 10, 11, 12, 13, -7, -7, -7, -7]]
    assert history.scores[0, 2:6].tolist() == [-1.125, -9.0, -2.25, -2.5]
    assert history.scores.isnan().sum() == 6
    assert history.kept.tolist() == [[-9, -9, 2, 4]]


def both(
    scores: Tensor, tokens: Tensor, above: Tensor, feedback: Tensor | None, mask: Tensor | None, depth: int, step: int
) -> tuple[Grown, History]:
    """What the kernel gives, after a comparison with the reference."""
    B, K = above.shape
    ours, theirs = blank(B, K, depth), blank(B, K, depth)
    got = grow_triton(scores, tokens, above, feedback, mask, ours, step)
    want = grow_torch(scores, tokens, above, feedback, mask, theirs, step)
    for a, b in zip((*got, *ours), (*want, *theirs), strict=True):
        if a is None or b is None:
            assert a is b
        else:
            assert a.dtype == b.dtype
            assert torch.equal(a.nan_to_num(99.0), b.nan_to_num(99.0))
    return got, ours


@pytest.mark.parametrize("top_k", [1, 2, 3, 10])
@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("width", [None, 5, 1100])
def test_triton_equals_torch(top_k: int, step: int, width: int | None) -> None:
    torch.manual_seed(top_k)
    B, depth = 3, 5
    scores = -torch.randint(0, 4, (B * top_k, top_k), device=DEVICE).float()  # many ties
    scores[0] = math.nan
    scores[-1] = -math.inf
    tokens = torch.randint(0, 1 << 40, (B * top_k, top_k), device=DEVICE)
    above = -torch.rand(B, top_k, device=DEVICE).round()
    feedback = None if width is None else torch.randn(B * top_k, width, device=DEVICE)
    words = -(-top_k * (depth - 1) // 32)
    last = step == depth - 1
    mask = torch.randint(-(2**31), 2**31 - 1, (B, top_k, words), device=DEVICE, dtype=torch.int32)
    got, history = both(scores, tokens, above, feedback, None if last or top_k == 1 else mask, depth, step)
    assert not got.scores.isnan().any()
    kept = history.kept[:, step * top_k : (step + 1) * top_k]
    assert kept.shape[1] == (0 if last else top_k)
    assert torch.equal(history.tokens.gather(1, kept), got.tokens[:, : kept.shape[1]])


def test_bit_31_is_the_sign() -> None:
    mask = torch.zeros(1, 8, 2, dtype=torch.int32, device=DEVICE)
    scores = torch.zeros(8, 8, device=DEVICE)
    tokens = torch.arange(64, device=DEVICE).view(8, 8)
    got, _ = both(scores, tokens, torch.zeros(1, 8, device=DEVICE), None, mask, 6, 3)  # entries 24 … 31
    assert got.mask is not None
    assert got.mask[0, 7].tolist() == [-(2**31), 0]


def test_start_worked_example() -> None:
    history = blank(2, 2, 3)
    scores = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], device=DEVICE)
    tokens = torch.tensor([[5, 6], [7, 8]], device=DEVICE)
    feedback = torch.arange(6.0, device=DEVICE).view(3, 2)
    got = start_torch(scores, tokens, feedback, torch.tensor([0, 2], device=DEVICE), history, 1)
    assert got.feedback is not None
    assert got.feedback.tolist() == [[[0.0, 1.0]] * 2, [[4.0, 5.0]] * 2]
    assert got.mask is not None
    assert got.mask.tolist() == [[[1], [2]]] * 2
    assert history.tokens.tolist() == [[5, 6, *[-7] * 8], [7, 8, *[-7] * 8]]
    assert history.scores[:, :2].tolist() == scores.tolist()
    assert history.scores.isnan().sum() == 16
    assert history.kept.tolist() == [[0, 1, -9, -9]] * 2


@pytest.mark.parametrize("top_k", [2, 10, 40])
@pytest.mark.parametrize("depth", [1, 2, 6])
@pytest.mark.parametrize("width", [5, 1100])
def test_start_triton_equals_torch(top_k: int, depth: int, width: int) -> None:
    torch.manual_seed(top_k)
    scores = -torch.rand(3, top_k, device=DEVICE)
    scores[0, 1] = -math.inf
    tokens = torch.randint(0, 1 << 40, (3, top_k), device=DEVICE)
    feedback, last = torch.randn(7, width + 1, device=DEVICE)[:, :width], torch.tensor([6, 0, 6], device=DEVICE)
    feedback[0] = math.nan
    words = max(1, -(-top_k * (depth - 1) // 32))
    ours, theirs = blank(3, top_k, depth), blank(3, top_k, depth)
    got = start_triton(scores, tokens, feedback, last, ours, words)
    want = start_torch(scores, tokens, feedback, last, theirs, words)
    for a, b in zip((*got, *ours), (*want, *theirs), strict=True):
        assert a is not None
        assert b is not None
        assert a.dtype == b.dtype
        assert a.is_contiguous()
        assert torch.equal(a.nan_to_num(99.0), b.nan_to_num(99.0))
