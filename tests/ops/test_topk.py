import math

import torch

from eagle3.ops.topk import draft_topk


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
