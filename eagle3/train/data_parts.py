"""Answers that are done, kept as they come: what a kill leaves, a later run goes on from."""

import errno
import hashlib
import json
import os
from array import array
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from eagle3.errors import Eagle3Error


@dataclass(frozen=True)
class Answer:
    """What the target wrote: its token ids, the end token included; `ended`: it has one."""

    ids: "array[int]"  # 4 bytes a token
    ended: bool


def key_of(*facts: object) -> str:
    """A name for what decides an answer: equal facts, equal name, on any machine."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def seed_of(*facts: object) -> int:
    """A seed of [0, 2^63) that depends on the facts alone: not on order, batch, or what else is asked."""
    return int(key_of("seed", *facts)[:16], 16) >> 1


class Parts:
    """Answers by name in an append-only file, a line each; a context manager that closes it."""

    def __init__(self, path: Path) -> None:
        """Read what is there, without the torn last line of a run that was killed.

        Raises Eagle3Error for any other line that is broken, and where the disk refuses.
        """
        self.path = path
        self._answers: dict[str, Answer] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            for number, line in enumerate(whole.splitlines(), 1):
                self._read(number, line)
            self._file = path.open("ab", buffering=0)  # nothing is left to write when it closes
            self._file.truncate(len(whole))
        except OSError as fault:
            raise Eagle3Error(f"{path}: {fault.strerror or fault}") from fault

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def __getitem__(self, key: str) -> Answer:
        return self._answers[key]

    def __enter__(self) -> "Parts":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, key: str, ids: list[int], ended: bool) -> None:
        """Keep an answer; it is with the operating system when this returns."""
        row = json.dumps({"key": key, "ids": ids, "ended": ended}, separators=(",", ":")).encode() + b"\n"
        try:
            if self._file.write(row) < len(row):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as fault:
            raise Eagle3Error(f"{self.path}: cannot be written: {fault.strerror or fault}") from fault
        self._answers[key] = Answer(array("i", ids), ended)

    def _read(self, number: int, line: bytes) -> None:
        try:
            row = json.loads(line)
            self._answers[row["key"]] = Answer(array("i", row["ids"]), row["ended"])
        except (ValueError, KeyError, TypeError, OverflowError) as fault:
            raise Eagle3Error(f"{self.path}:{number}: is no answer: {fault!r}; remove the line") from fault
