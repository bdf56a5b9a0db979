"""What a finished request is told about itself."""

from dataclasses import asdict, dataclass

from eagle3.engine.request import Request


@dataclass(frozen=True)
class Metrics:
    """Times in milliseconds from the request's arrival; null where there is nothing to say, never NaN."""

    num_prompt_tokens: int
    num_output_tokens: int
    ttft_ms: float | None  # to the first token
    tpot_ms: float | None  # (e2el - ttft) / (tokens - 1)
    e2el_ms: float | None  # to the end
    num_preemptions: int

    def json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def metrics(request: Request) -> Metrics:
    """The metrics of a request that has ended."""

    def since(moment: float | None) -> float | None:
        return None if moment is None else 1000 * (moment - request.arrived)

    ttft, e2el, n = since(request.first_token), since(request.finished), request.emitted
    tpot = (e2el - ttft) / (n - 1) if e2el is not None and ttft is not None and n > 1 else None
    return Metrics(request.prompt_len, n, ttft, tpot, e2el, request.preemptions)
