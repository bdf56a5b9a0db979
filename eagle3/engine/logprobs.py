"""Log-probabilities of an answer's tokens, as results have them."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3.spec.logprobs import Logprobs


@dataclass(frozen=True)
class Logprob:
    """What the target's logits, as they are, give a token, and the most probable tokens in its place."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]  # best first; as many as were asked for


class Told:
    """A pass's log-probabilities, on the host."""

    def __init__(self, found: Logprobs) -> None:
        """Reads them: they must have arrived."""
        self._own, self._best, self._tops = (t.tolist() for t in found)

    def of(self, row: int, tokens: Sequence[int], k: int) -> list[Logprob]:
        """Those of a request's first tokens, with the k best beside each."""
        own, best, tops = self._own[row], self._best[row], self._tops[row]
        return [Logprob(token, own[i], [*zip(best[i][:k], tops[i][:k], strict=True)]) for i, token in enumerate(tokens)]
