"""A tokenizer of sixteen tokens, of which three make one character."""

from collections.abc import Sequence

from eagle3.text.tokenizer import Tokenizer

PIECES = (
    b"a",
    b"b",
    b"ab",
    b" c",
    b"\xe5",
    b"\xa5",
    b"\xbd",
    b"d\n",
    b"\n",
    b"e",
    b"fg",
    b" ",
    b"ba",
    b"h",
    b"!",
    b"x",
)


class Letters(Tokenizer):
    """Tokens as bytes of UTF-8; what is no character comes out as U+FFFD."""

    special_ids = frozenset()  # type: ignore[assignment]

    def __init__(self) -> None:
        """Needs no files."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`."""
        return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace")

    def token(self, token_id: int) -> str:
        """One token, readable."""
        return repr(PIECES[token_id])
