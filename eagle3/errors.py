"""Every error a user or a file can cause.

Eagle3Error
├─ ConfigError       all broken rules at once: key, value seen, value wanted, origin
├─ WeightError       a checkpoint lacks, or has beyond, what the model names; shapes that differ
├─ UnsupportedError  a feature not built, or two that cannot go together
├─ CapacityError     a request can never fit
└─ RunError          a run, or some requests or jobs of it, failed
"""

from collections.abc import Sequence
from dataclasses import dataclass


class Eagle3Error(Exception):
    """The base of all errors that are the user's to mend; the command line prints them in one block."""


@dataclass(frozen=True)
class Problem:
    """One broken rule: the key, what was seen there, what is wanted, and who set it."""

    key: str
    message: str
    value: object = None
    origin: str | None = None  # "override spec.max_draft_len=0", "conf/spec/tree.yaml", None: a default

    def __str__(self) -> str:
        where = f"  ({self.origin})" if self.origin else ""
        return f"{self.key}: {self.message}{where}"


class ConfigError(Eagle3Error):
    """A configuration that breaks rules; `problems` holds every one of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class WeightError(Eagle3Error):
    """A checkpoint whose files, tensors or shapes are not what the model names."""


class UnsupportedError(Eagle3Error):
    """A feature that is not built yet, or two that cannot go together."""


class CapacityError(Eagle3Error):
    """A request that can never fit; the message names the need and the limit."""


class RunError(Eagle3Error):
    """A run that failed, or some requests or jobs of it; exit code 1."""
