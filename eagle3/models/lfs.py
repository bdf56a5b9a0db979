"""Files whose content git-lfs keeps elsewhere: a clone without it has a few lines of text in their place."""

from pathlib import Path

from eagle3.errors import WeightError

_BEGINS = b"version https://git-lfs.github.com/spec/v1"


def is_pointer(file: Path) -> bool:
    """Whether a file is such a text; False too where it cannot be read."""
    try:
        with file.open("rb") as head:
            return head.read(len(_BEGINS)) == _BEGINS
    except (OSError, ValueError):  # a name with a zero in it
        return False


def require_content(file: Path) -> None:
    """Raise WeightError for such a text."""
    if is_pointer(file):
        raise WeightError(f"{file} is a git-lfs pointer, not the file: run 'git lfs pull' in its folder")
