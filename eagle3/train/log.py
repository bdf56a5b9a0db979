"""What a run tells: one JSON object a line, and TensorBoard's files where it is installed."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eagle3.config.files import write_whole
from eagle3.errors import RunError

NAME = "log.jsonl"
MEMORY = "memory"  # the kind of the last record of a run


def finished(folder: Path, update: int) -> bool:
    """Whether the run in `folder` told its end, at `update`; RunError where that cannot be read."""
    file = folder / NAME
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    except OSError as fault:
        raise RunError(f"{file} cannot be read: {fault.strerror}") from fault
    last = json.loads(lines[-1]) if lines and lines[-1].endswith("}") else {}
    return (last.get("kind"), last.get("update")) == (MEMORY, update)


class Log:
    """FOLDER/log.jsonl. Records have an "update"; those after the update that a run goes on from are dropped."""

    def __init__(self, folder: Path, since: int) -> None:
        self.file = folder / NAME
        try:
            if self.file.is_file():
                lines = self.file.read_text(encoding="utf-8").splitlines()
                kept = [line for line in lines if line.endswith("}") and json.loads(line)["update"] <= since]
                write_whole(self.file, "".join(f"{line}\n" for line in kept))
        except OSError as fault:
            raise RunError(f"{self.file} cannot be written: {fault.strerror}") from fault
        self._board: Any = None
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=since)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a record. RunError where the disk refuses."""
        try:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as fault:
            raise RunError(f"{self.file} cannot be written: {fault.strerror}") from fault
        if self._board is not None:
            for key, value in record.items():
                values = value if isinstance(value, list) else [value]
                for i, one in enumerate(v for v in values if isinstance(v, int | float)):
                    name = f"{record['kind']}/{key}" + (f"_{i}" if isinstance(value, list) else "")
                    self._board.add_scalar(name, one, record["update"])
