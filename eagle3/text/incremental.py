"""Text as it comes, token by token, equal in sum to decoding all tokens at once."""

import re

from eagle3.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class IncrementalDecoder:
    """Turns one request's tokens into text; only what later tokens cannot change is given out.

    A decoder may treat the first token of a sequence in its own way (a leading space is dropped), so a token
    is decoded with the ones before it, from the start of the piece last given out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the piece last given out, and what follows it
        self._given = 0  # how many of `_ids` are given out
        self._text = ""  # of these

    def push(self, token_id: int) -> str:
        """The text that `token_id` makes certain; '' for special tokens and inside a character."""
        if token_id in self._tokenizer.special_ids:
            return ""
        self._ids.append(token_id)
        if BYTE_TOKEN.fullmatch(self._tokenizer.token(token_id)):
            return ""  # a run of byte tokens is one piece: a bad byte at its end would change all of it
        return self._advance(final=False)

    def finish(self) -> str:
        """The rest; what is still no character then comes out as U+FFFD."""
        return self._advance(final=True)

    def rest(self) -> str:
        """What `finish` would give out now; nothing changes."""
        return self._tokenizer.decode(self._ids)[len(self._text) :]

    def _advance(self, final: bool) -> str:
        text = self._tokenizer.decode(self._ids)
        if not final and (len(text) <= len(self._text) or text.endswith(REPLACEMENT)):
            return ""
        piece = text[len(self._text) :]
        self._ids = self._ids[self._given :]
        self._given = len(self._ids)
        self._text = self._tokenizer.decode(self._ids)
        return piece
