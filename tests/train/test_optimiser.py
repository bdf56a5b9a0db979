"""Masters of 16-bit parameters: what they collect, and what becomes of it."""

from copy import deepcopy

import torch
from torch import nn

from eagle3.config.schema import TrainConfig
from eagle3.train.optimiser import Optimiser

TRAIN = TrainConfig(lr=0.1, clip=1e9)


def test_gradients_of_16_bits_are_added_up_in_32() -> None:
    torch.manual_seed(0)
    half, whole, idle = (nn.Parameter(torch.randn(3, 4).to(t)) for t in (torch.bfloat16, torch.float32, torch.bfloat16))
    frozen = nn.Parameter(torch.randn(2).bfloat16(), requires_grad=False)
    made = Optimiser([half, whole, frozen, idle], TRAIN)
    assert [live is master for live, master in zip(made.live, made.masters, strict=True)] == [False, True, False]
    given = torch.randn(3, 3, 4).bfloat16()
    for part in given:
        half.grad = part.clone()
        whole.grad = part.float() if whole.grad is None else whole.grad + part
        made.collect()
        assert half.grad is None
    first, second, third = made.gradient()
    assert first.dtype == torch.float32
    assert torch.equal(first, (given[0].float() + given[1]) + given[2])
    assert not torch.equal(first, first.bfloat16().float()), "16 bits would have lost something"
    assert torch.equal(second, first)
    assert not third.any()


def test_a_step_reaches_the_parameters_and_a_state_goes_on_with_the_same_bits() -> None:
    torch.manual_seed(0)
    start = torch.randn(5, 3).bfloat16()
    lives = [nn.Parameter(start.clone()) for _ in range(2)]
    one, two = (Optimiser([live], TRAIN) for live in lives)
    for _ in range(3):
        lives[0].grad = torch.randn(5, 3).bfloat16()
        one.collect()
        assert one.update(0.1).isfinite()
        assert torch.equal(lives[0], one.masters[0].bfloat16())
    assert not torch.equal(lives[0], start)
    two.load(deepcopy(one.state()))
    assert torch.equal(lives[1], lives[0])
    more = torch.randn(5, 3).bfloat16()
    for live, optimiser in zip(lives, (one, two), strict=True):
        live.grad = more.clone()
        optimiser.collect()
        optimiser.update(0.01)
    assert torch.equal(one.masters[0], two.masters[0])
    assert torch.equal(lives[1], lives[0])
