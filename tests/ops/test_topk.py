import math

import pytest
import torch

from eagle3.ops.topk import draft_topk, draft_topk_torch, draft_topk_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]


def test_log_probabilities_in_descending_order() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 40, dtype=torch.float64) * 2
    scores, ids = draft_topk(logits, 5)
    want = logits.float().log_softmax(-1).sort(dim=-1, descending=True)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, want.values[:, :5])
    assert torch.equal(ids, want.indices[:, :5])


def test_ties_go_to_the_lower_id() -> None:
    scores, ids = draft_topk(torch.zeros(2, 8), 3)
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert torch.allclose(scores, torch.full((2, 3), -math.log(8)))


def test_low_precision_logits_are_normalised_in_float32() -> None:
    logits = torch.randn(3, 100).bfloat16()
    assert torch.equal(draft_topk(logits, 4)[0], draft_topk(logits.float(), 4)[0])


def test_a_row_with_nan_scores_minus_infinity_and_spares_the_others() -> None:
    logits = torch.tensor([[0.0, math.nan, 1.0], [0.0, 1.0, 2.0]])
    scores, ids = draft_topk(logits, 2)
    assert scores[0].tolist() == [-math.inf] * 2
    assert ids.tolist() == [[0, 1], [2, 1]]
    assert scores[1].isfinite().all()


def test_target_ids_are_offsets_from_the_draft_s() -> None:
    d2t = torch.tensor([3, 0, 7, 1])
    logits = torch.tensor([[0.0, 1.0, 3.0, 2.0]])
    assert draft_topk(logits, 3, d2t)[1].tolist() == [[9, 4, 1]]
    assert torch.equal(draft_topk(logits, 3, d2t)[0], draft_topk(logits, 3)[0])


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("size", "k"), [(5, 5), (40, 32), (300, 1), (2049, 6)])
def test_triton_equals_torch(dtype: torch.dtype, size: int, k: int) -> None:
    mapped = k != 5
    torch.manual_seed(size)
    logits = (torch.randn(8, size + 1, device=DEVICE) * 3).to(dtype)[:, :size]
    logits[1] = logits[1].round()  # ties
    logits[2, size // 2] = math.nan
    logits[3, size // 2] = math.inf
    logits[4] = -math.inf
    logits[5, 2:] = -math.inf  # fewer than k are possible
    logits[6] = 0.0
    d2t = torch.arange(size, device=DEVICE) * 3 if mapped else None
    scores, ids = draft_topk_triton(logits, k, d2t)
    want, want_ids = draft_topk_torch(logits, k, d2t)
    assert torch.equal(ids, want_ids)
    assert scores.dtype == torch.float32
    assert torch.equal(scores.isinf(), want.isinf())
    assert not scores.isnan().any()
    exact = logits.double().log_softmax(-1).gather(1, ids // 4 if mapped else ids)
    sound = [0, 1, 6, 7]
    torch.testing.assert_close(scores[sound].double(), exact[sound], rtol=0, atol=4e-6)
    assert bool((scores[:, 1:] <= scores[:, :-1]).all())


def test_a_row_s_bits_do_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 3000, device=DEVICE)
    together = draft_topk_triton(logits, 4)[0]
    alone = torch.cat([draft_topk_triton(logits[i : i + 1], 4)[0] for i in range(6)])
    assert torch.equal(together, alone)
