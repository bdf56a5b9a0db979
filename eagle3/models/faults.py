"""Errors met on the way, kept until all of them can be told at once."""

from collections.abc import Callable
from typing import TypeVar

from eagle3.errors import ConfigError, Eagle3Error, Problem

T = TypeVar("T")
F = TypeVar("F")


class Faults:
    """What was wrong so far. `key` is what a user would change, `value` what it is now."""

    def __init__(self, key: str, value: object = None) -> None:
        self.key, self.value = key, value
        self.seen: list[Eagle3Error] = []

    def attempt(self, step: Callable[[], T], fallback: F) -> T | F:
        """What `step` returns, or `fallback` where it raises an error of ours, which is kept."""
        try:
            return step()
        except Eagle3Error as error:
            self.seen.append(error)
            return fallback

    def sound(self, step: Callable[[], object]) -> bool:
        """Whether `step` raises nothing; what it raises is kept."""
        before = len(self.seen)
        self.attempt(step, None)
        return len(self.seen) == before

    def problems(self) -> list[Problem]:
        """All of it, each with the key to change."""
        found: list[Problem] = []
        for error in self.seen:
            alone = (Problem(self.key, str(error), self.value),)
            found += error.problems if isinstance(error, ConfigError) else alone
        return found

    def tell(self) -> None:
        """Raise the only error, or one of the first one's kind that tells all."""
        if len(self.seen) == 1:
            raise self.seen[0]
        if self.seen and isinstance(self.seen[0], ConfigError):
            raise ConfigError(self.problems())
        if self.seen:
            raise type(self.seen[0])("\n".join(map(str, self.seen)))
