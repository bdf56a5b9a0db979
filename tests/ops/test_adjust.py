import pytest
import torch
from torch import Tensor
from transformers import MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

from eagle3.ops.adjust import BLOCK, Terms, adjust_torch, adjust_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def terms(slots: int, size: int) -> Terms:
    """Random ones; slot 0 asks nothing."""
    make = torch.Generator().manual_seed(0)

    def some(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(slots, generator=make)

    free = torch.randint(5, 15, (slots,), generator=make)
    stops = torch.randint(-1, size, (slots, 4), generator=make)
    repetition, frequency, presence = some(0.5, 2.0), some(-2.0, 2.0), some(-2.0, 2.0)
    free[0], repetition[0], frequency[0], presence[0] = 0, 1.0, 0.0, 0.0
    written = torch.randint(-3, 4, (slots, size), generator=make).clamp(min=0).int()
    prompted = torch.randint(0, 2, (slots, size), generator=make).byte()
    every = (free, stops, repetition, frequency, presence, written, prompted)
    return Terms(*(t.to(DEVICE) for t in every))


def batch(requests: int, nodes: int, slots: int, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(nodes)
    ids = torch.arange(requests) % slots
    index = 4 + 5 * torch.arange(requests * nodes) % 11
    tokens = torch.randint(0, size, (requests, nodes), generator=make)
    mask = torch.randint(-(2**31), 2**31, (requests, nodes, -(-nodes // 32)), generator=make).int()
    return ids.to(DEVICE), index.to(DEVICE), tokens.to(DEVICE), mask.to(DEVICE)


@pytest.mark.parametrize(("least", "penalised"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("requests", "nodes", "size"), [(3, 1, 40), (3, 7, BLOCK + 3), (2, 34, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_triton_equals_torch(
    requests: int, nodes: int, size: int, dtype: torch.dtype, least: bool, penalised: bool
) -> None:
    torch.manual_seed(0)
    logits = (4 * torch.randn(requests * nodes, size + 1, device=DEVICE)).to(dtype)[:, :size]
    given = terms(5, size), *batch(requests, nodes, 5, size)
    got = adjust_triton(logits, *given, least=least, penalised=penalised)
    want = adjust_torch(logits, *given, least=least, penalised=penalised)
    assert got.dtype == want.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=4e-6 if penalised else 0)
    assert bool(want.isinf().any()) == least
    assert not torch.equal(want, logits.float())


@pytest.mark.parametrize("change", [adjust_torch, adjust_triton])
def test_who_asks_nothing_keeps_every_bit(change: object) -> None:
    logits = torch.randn(6, 50, device=DEVICE)
    logits[0, 0], logits[0, 1] = -0.0, float("-inf")
    _, index, tokens, mask = batch(2, 3, 4, 50)
    slots = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    got = change(logits, terms(4, 50), slots, index, tokens, mask, least=True, penalised=True)  # type: ignore[operator]
    assert torch.equal(got.view(torch.int32), logits.view(torch.int32))


def test_each_row_by_its_own_path() -> None:
    """A root 3 with the children 4 and 5, of which 4 has the child 3: by hand."""
    size = 6
    asked = Terms(
        free=torch.tensor([0]),
        stops=torch.tensor([[-1]]),
        repetition=torch.tensor([2.0]),
        frequency=torch.tensor([0.5]),
        presence=torch.tensor([0.25]),
        written=torch.tensor([[0, 1, 0, 0, 0, 0]], dtype=torch.int32),
        prompted=torch.tensor([[1, 0, 0, 0, 0, 0]], dtype=torch.uint8),
    )
    tokens, mask = torch.tensor([[3, 4, 5, 3]]), torch.tensor([[[0b0001], [0b0011], [0b0101], [0b1011]]]).int()
    logits = torch.tensor([[1.0, 1.0, 1.0, -1.0, 1.0, 1.0]], dtype=torch.float64).expand(4, size)
    got = adjust_torch(
        logits, asked, torch.tensor([0]), torch.zeros(4).long(), tokens, mask, least=False, penalised=True
    )
    said = -0.25  # 1 / 2 - 0.5 - 0.25
    want = [
        [0.5, said, 1, -2.75, 1, 1],
        [0.5, said, 1, -2.75, said, 1],
        [0.5, said, 1, -2.75, 1, said],
        [0.5, said, 1, -3.25, said, 1],
    ]
    assert got.tolist() == want


def test_equals_transformers() -> None:
    torch.manual_seed(1)
    size, prompt, answer = 30, [3, 4, 4, 9], [4, 7, 7]
    logits = torch.randn(1, size, dtype=torch.float64)
    ids = torch.tensor([prompt + answer])
    asked = Terms(
        free=torch.tensor([len(prompt) + 4]),
        stops=torch.tensor([[5, 6, -1]]),
        repetition=torch.tensor([1.25]),
        frequency=torch.tensor([0.0]),
        presence=torch.tensor([0.0]),
        written=torch.bincount(torch.tensor(answer[:-1]), minlength=size)[None].int(),
        prompted=(torch.bincount(torch.tensor(prompt), minlength=size) > 0)[None].byte(),
    )
    root, own = torch.tensor([[answer[-1]]]), torch.ones(1, 1, 1, dtype=torch.int32)
    for index in (len(prompt) + 3, len(prompt) + 4):
        got = adjust_torch(
            logits, asked, torch.tensor([0]), torch.tensor([index]), root, own, least=True, penalised=True
        )
        want = RepetitionPenaltyLogitsProcessor(1.25)(ids, logits.clone())
        so_far = torch.zeros(1, index, dtype=torch.int64)
        want = MinNewTokensLengthLogitsProcessor(len(prompt), 4, [5, 6], device="cpu")(so_far, want)
        assert torch.equal(got, want)
        assert bool(got[0, 5].isinf()) == (index == len(prompt) + 3)
