"""A run's folder: whose it is, and checkpoints that are there whole or not at all."""

import fcntl
import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from eagle3.config.files import write_whole
from eagle3.errors import ConfigError, Problem, RunError, WeightError

log = logging.getLogger(__name__)
RUN = "run.json"
LOCK = "run.lock"
_STATE = "state.pt"
_FAULTS = (OSError, RuntimeError, SafetensorError)  # what writers raise on a disk that is full
_UNREADABLE = (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError, ValueError)


@contextmanager
def claimed(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> Iterator[None]:
    """Make `folder` this run's, and hold it against others until the end.

    Raises ConfigError where it holds another run, or something else, or is in use.
    """
    try:
        if folder.exists() and {path.name for path in folder.iterdir()} - {LOCK} and not (folder / RUN).is_file():
            raise _refused(folder, "holds files that are no run of train: choose an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
    except OSError as fault:
        raise _refused(folder, f"cannot be used: {fault}") from fault
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise _refused(folder, "in use by another run: wait for its end, or choose another folder") from fault
        except OSError as fault:  # a file system without locks
            log.warning("train.out=%s cannot be locked: %s; see that no other run uses it", folder, fault.strerror)
        _claim(folder, identity, resume=resume)
        yield


def _claim(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
    file = folder / RUN
    try:
        if not file.is_file():
            write_whole(file, json.dumps(identity, indent=2) + "\n")
            return
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise _refused(folder, f"cannot be used: {fault}") from fault
    if not isinstance(known, dict):
        raise _refused(folder, f"holds files that are no run of train ({RUN}): choose an empty folder")
    keys = [key for key in {**known, **identity} if known.get(key) != identity.get(key)]
    if keys:
        told = "; ".join(f"{key} {known.get(key)} there, {identity.get(key)} here" for key in keys)
        raise _refused(folder, f"holds another run: {told}; choose another folder")
    if not resume:
        raise _refused(folder, "holds this run already: train.resume=true goes on with it")


def _refused(folder: Path, message: str) -> ConfigError:
    return ConfigError([Problem("train.out", message, str(folder))])


class Checkpoints:
    """FOLDER/checkpoints/N, N updates done: the optimiser's state beside the head as it then was; the last few."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder / "checkpoints", keep

    def all(self) -> list[Path]:
        """Those that are whole, oldest first."""
        if not self.folder.is_dir():
            return []
        named = [path for path in self.folder.iterdir() if re.fullmatch(r"\d+", path.name)]
        return sorted(named, key=lambda path: int(path.name))

    @property
    def told(self) -> str:
        """The last one, in words."""
        there = self.all()
        return f"the last checkpoint is {there[-1]}" if there else "there is no checkpoint yet"

    def save(self, update: int, state: Mapping[str, Any], export: Callable[[Path], None]) -> None:
        """Write one, then drop the oldest. RunError where the disk refuses; earlier ones are then untouched."""
        part = self.folder / f"{update}.part"
        done = self.folder / str(update)
        if done.exists():
            return
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            export(part)
            with (part / _STATE).open("wb") as file:
                torch.save(dict(state), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, done)
        except _FAULTS as fault:
            shutil.rmtree(part, ignore_errors=True)
            reason = getattr(fault, "strerror", None) or str(fault).splitlines()[0]
            raise RunError(f"checkpoint {done} cannot be written: {reason}; {self.told}") from fault
        for old in self.all()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """The last one: its number and state; None where there is none. WeightError where it cannot be read."""
        there = self.all()
        if not there:
            return None
        try:
            state = torch.load(there[-1] / _STATE, map_location="cpu", weights_only=True)
        except _UNREADABLE as fault:
            reason = str(fault).splitlines()[0]
            raise WeightError(f"{there[-1] / _STATE} cannot be read: {reason}; remove the folder to go back") from fault
        return int(there[-1].name), state
