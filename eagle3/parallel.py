"""Where a rank stands among those that share a model. No process group is opened here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TP:
    """Tensor parallel: this rank's place and how many there are."""

    rank: int = 0
    size: int = 1
