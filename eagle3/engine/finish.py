"""When a request ends: one pure function, token by token, for every mode of decoding."""

from collections.abc import Callable, Collection, Sequence
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


def never(token: int, count: int) -> bool:
    """Tokens that no text is made of complete no stop string."""
    return False


def keep(
    new: Sequence[int],
    emitted: int,
    limit: int,
    ends: Collection[int],
    completes: Callable[[int, int], bool] = never,
) -> tuple[list[int], FinishReason | None]:
    """The tokens of `new` that a request keeps, and why it ends, if it does.

    `emitted` tokens came before, `limit` is the most it may emit, `ends` are the tokens that stop it. `completes` is
    asked of each other token, in order, and of how many there are with it: does it complete a stop string? What
    stops is kept, and wins over the limit where both fall on one token.
    """
    kept: list[int] = []
    for token in new:
        kept.append(token)
        if token in ends or completes(token, emitted + len(kept)):
            return kept, "stop"
        if emitted + len(kept) >= limit:
            return kept, "length"
    return kept, None
