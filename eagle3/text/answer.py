"""The text of one answer as it comes, which ends before the first of its stop strings."""

from collections.abc import Sequence

from eagle3.text.incremental import IncrementalDecoder
from eagle3.text.tokenizer import Tokenizer


class AnswerText:
    """Shows only what neither a later token nor a stop string can take back.

    A stop string is complete with the first token after which the decoded text has all of it, across the borders of
    tokens and characters. Of several that this token completes, the one that begins first wins, then the one named
    first.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self.stopped_by: str | None = None
        self._decoder = IncrementalDecoder(tokenizer)
        self._stops = tuple(stops)
        self._held = ""  # certain, but the beginning of a stop string: the longest such end of the text
        self._shown: list[str] = []
        self._taken = 0

    def push(self, token_id: int, *, counts: bool = True) -> bool:
        """Take in a token; whether it completes a stop string. One that does not count (yet) stops nothing."""
        piece = self._decoder.push(token_id)
        if not self._stops:
            self._shown.append(piece)
            return False
        text = self._held + piece
        whole = text + self._decoder.rest()
        found = self._find(whole) if counts else None
        if found is not None:
            at, self.stopped_by = found
            self._shown.append(whole[:at])
            return True
        kept = max(_beginning(text, stop) for stop in self._stops)
        self._shown.append(text[: len(text) - kept])
        self._held = text[len(text) - kept :]
        return False

    def take(self) -> list[str]:
        """The pieces of the tokens pushed since, one each: the text that a token made certain."""
        taken, self._taken = self._taken, len(self._shown)
        return self._shown[taken:]

    def finish(self) -> str:
        """The rest of an answer that has ended; nothing after a stop string."""
        return "" if self.stopped_by is not None else self._held + self._decoder.finish()

    @property
    def shown(self) -> str:
        """All pieces so far."""
        return "".join(self._shown)

    def _find(self, text: str) -> tuple[int, str] | None:
        """Where the first stop string begins in `text` that ends after what was held, and which it is.

        None can begin before `text` does: its beginning would be held.
        """
        places = ((text.find(stop, max(0, len(self._held) - len(stop) + 1)), stop) for stop in self._stops)
        return min((place for place in places if place[0] >= 0), key=lambda place: place[0], default=None)


def _beginning(text: str, stop: str) -> int:
    """Characters at the end of `text` that a stop string begins with, but not all of it."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)
