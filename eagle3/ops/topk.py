"""The K candidates that a draft row offers."""

from torch import Tensor

from eagle3.ops.select import topk


def draft_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities float32 [R, k], largest first, and draft ids i64 [R, k] for draft logits [R, Vd].

    A row with a NaN still offers ids, with scores of -inf, so that they are never chosen over sound ones.
    """
    return topk(logits.float().log_softmax(-1), k)
