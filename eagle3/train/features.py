"""The target's features on disk: made once for all samples, read from then on in place of its layers."""

import hashlib
import json
import logging
import os
import shutil
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from eagle3.config.files import write_whole
from eagle3.config.schema import TrainConfig
from eagle3.errors import ConfigError, Problem, RunError
from eagle3.train.data_answers import Tell
from eagle3.train.packing import Batch, Row, batch_of, chunks, pack
from eagle3.train.ranks import Ranks
from eagle3.train.samples import Sample
from eagle3.train.teacher import Teacher

log = logging.getLogger(__name__)
_OWNER, _VALUES, _DONE = "features.json", "features.bin", "done.bin"
_KEY = "train.features"


class Features:
    """FOLDER/features.bin: of each sample captured [n, C·H], then the final hidden [n, H], in the target's type.

    Samples of the same ids are one. features.json says whose they are; done.bin which samples are there, an i64 each,
    written once their features are on the disk: so a run that stopped goes on with what is missing.
    """

    def __init__(self, folder: Path, samples: Sequence[Sample], teacher: Teacher) -> None:
        self.folder, self.teacher = folder, teacher
        weight, width = teacher.target.embed.weight, teacher.target.facts.hidden
        self.dtype, self.device = weight.dtype, weight.device
        self.widths = (len(teacher.layers) * width, width)
        self.samples = list(dict.fromkeys(sample.ids for sample in samples))
        self.lengths = [len(ids) for ids in self.samples]
        self.token = sum(self.widths) * self.dtype.itemsize  # bytes
        starts = accumulate((n * self.token for n in self.lengths), initial=0)
        self.starts = dict(zip(self.samples, starts, strict=False))
        self._file: BinaryIO | None = None

    def identity(self, mark: Mapping[str, Any]) -> dict[str, Any]:
        """What makes features these and no others; `mark` tells of the target."""
        digest = hashlib.sha256()
        for ids in self.samples:
            digest.update(repr(ids).encode())
        return {
            "samples": digest.hexdigest()[:16],
            "target": dict(mark),
            "layers": list(self.teacher.layers),
            "type": str(self.dtype).removeprefix("torch."),
        }

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Make the folder these features'. ConfigError where it holds others, or something else."""
        file = self.folder / _OWNER
        try:
            if not self.folder.exists() or not any(self.folder.iterdir()):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_whole(file, json.dumps(identity, indent=2) + "\n")
            known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        except (OSError, ValueError) as fault:
            raise self._refused(f"cannot be used: {fault}") from fault
        if not isinstance(known, dict):
            raise self._refused("holds files that are no features: choose an empty folder")
        if keys := [key for key in identity if known.get(key) != identity[key]]:
            told = "; ".join(f"{key} {known.get(key)} there, {identity[key]} here" for key in keys)
            raise self._refused(f"holds other features: {told}; choose another folder")

    def missing(self) -> list[int]:
        """Which samples are not there yet."""
        try:
            kept = (self.folder / _DONE).read_bytes() if (self.folder / _DONE).exists() else b""
        except OSError as fault:
            raise self._refused(f"cannot be used: {fault}") from fault
        there = array("q", kept[: len(kept) // 8 * 8])  # a number cut short is none
        return sorted(set(range(len(self.samples))) - set(there))

    def room(self, missing: Sequence[int]) -> None:
        """Say how much is to be written. ConfigError where the disk has not that much."""
        tokens = sum(self.lengths[i] for i in missing)
        need, free = tokens * self.token, shutil.disk_usage(self.folder).free
        said = f"{tokens} tokens of {self.token} bytes, {_gib(need)}, and {_gib(free)} are free"
        if need > free:
            message = (
                f"has no room: {said}; choose a folder on a larger disk, or null to make features as they are needed"
            )
            raise self._refused(message)
        log.info("features to be written to %s: %s", self.folder, said)

    def write(self, rows: int, length: int, ranks: Ranks, tell: Tell) -> None:
        """Make those that are missing, `rows` rows of `length` tokens a pass, passes dealt to the ranks in turn.

        All ranks wait for each other after each pass, so that none is silent for long. RunError where the disk refuses.
        """
        missing, tokens = self.missing(), 0
        passes = list(chunks(pack(missing, self.lengths, length), rows))
        done = len(self.samples) - len(missing)
        try:
            if missing and ranks.first:
                for name in (_VALUES, _DONE):
                    (self.folder / name).touch()
            ranks.any(False)
            for at in range(0, len(passes), ranks.size):
                for part in passes[at + ranks.rank : at + ranks.rank + 1]:
                    self._pass(part, length)
                ranks.any(False)
                written = [i for part in passes[at : at + ranks.size] for row in part for i in row]
                if ranks.first:
                    self._note(written)
                done, tokens = done + len(written), tokens + sum(self.lengths[i] for i in written)
                tell("features", done, len(self.samples), tokens)
        except OSError as fault:
            message = f"{self.folder}: features cannot be written: {fault.strerror}; the same command goes on"
            raise RunError(message) from fault

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Captured [T, C·H] and the final hidden [T, H] of a batch, zeros in paddings. RunError where a disk fails."""
        count, pinned = batch.ids.shape[0], self.device.type == "cuda"
        parts = [torch.empty(count, width, dtype=self.dtype, pin_memory=pinned) for width in self.widths]
        at = 0
        try:
            self._file = self._file or (self.folder / _VALUES).open("rb")
            for ids, n in zip(batch.samples, batch.lengths, strict=True):
                rows = [part[at : at + n] for part in parts]
                at += n
                if ids:
                    self._read(ids, rows)
                else:
                    torch._foreach_zero_(rows)
        except OSError as fault:
            raise RunError(f"{self.folder}: features cannot be read: {fault.strerror}") from fault
        captured, hidden = (part.to(self.device, non_blocking=True) for part in parts)
        return captured, hidden

    def _read(self, ids: tuple[int, ...], rows: Sequence[Tensor]) -> None:
        """Straight into memory that the device copies from; a mapped file would cost a copy more."""
        assert self._file is not None
        self._file.seek(self.starts[ids])
        for row in rows:
            if self._file.readinto(_bytes(row)) < row.nbytes:  # type: ignore[attr-defined]
                raise RunError(f"{self.folder}: features are cut short: remove the folder")

    def _pass(self, part: Sequence[Row], length: int) -> None:
        inside = [[Sample(self.samples[i], ()) for i in row] for row in part]
        made = [x.cpu() for x in self.teacher.features(batch_of(inside, length, self.device))]
        with (self.folder / _VALUES).open("r+b") as file:
            for r, row in enumerate(part):
                at = r * length
                for i in row:
                    file.seek(self.starts[self.samples[i]])
                    for values in made:
                        file.write(_bytes(values[at : at + self.lengths[i]]))
                    at += self.lengths[i]
            file.flush()
            os.fsync(file.fileno())

    def _note(self, written: Sequence[int]) -> None:
        path = self.folder / _DONE
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 8 * 8)
            file.write(array("q", written).tobytes())

    def _refused(self, message: str) -> ConfigError:
        return ConfigError([Problem(_KEY, message, str(self.folder))])


def read_features(
    teacher: Teacher, samples: Sequence[Sample], train: TrainConfig, mark: Mapping[str, Any], ranks: Ranks, tell: Tell
) -> None:
    """Let a teacher read the features of `samples` from train.features, where what is missing is made first.

    Raises ConfigError for a folder that holds something else or has no room, RunError where the disk refuses.
    """
    assert train.features is not None
    store = Features(Path(train.features), samples, teacher)
    identity = store.identity(mark)
    if ranks.first:
        store.claim(identity)
        if missing := store.missing():
            store.room(missing)
    ranks.any(False)
    store.claim(identity)  # what this rank sees there
    store.write(train.batch_size, train.seq_len, ranks, tell)
    ranks.any(False)
    teacher.read(store)


def _bytes(rows: Tensor) -> memoryview:
    flat: Any = rows.view(torch.uint8).numpy()
    return memoryview(flat).cast("B")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
