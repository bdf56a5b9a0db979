"""When a request ends: one pure function, token by token, for every mode of decoding."""

from collections.abc import Collection, Sequence
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


def keep(new: Sequence[int], emitted: int, limit: int, ends: Collection[int]) -> tuple[list[int], FinishReason | None]:
    """The tokens of `new` that a request keeps, and why it ends, if it does.

    `emitted` tokens came before, `limit` is the most it may emit, `ends` are the tokens that stop it. A stop token
    is kept, and wins over the limit where both fall on one token.
    """
    kept: list[int] = []
    for token in new:
        kept.append(token)
        if token in ends:
            return kept, "stop"
        if emitted + len(kept) >= limit:
            return kept, "length"
    return kept, None
