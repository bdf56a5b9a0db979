"""The files of a checkpoint: which there are, what is in them, and one tensor at a time out of them."""

import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3.config.files import read_json
from eagle3.errors import WeightError
from eagle3.models.lfs import is_pointer, require_content

_SINGLE = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_PART = re.compile(r"(model|pytorch_model)-\d+-of-\d+(\.safetensors|\.bin)")
# what damaged files of either kind are seen to raise
_UNREADABLE = (
    SafetensorError, pickle.UnpicklingError, struct.error, RuntimeError, ValueError, KeyError, IndexError, EOFError,
    OSError, AssertionError, TypeError, AttributeError, MemoryError, OverflowError, zipfile.BadZipFile,
)  # fmt: skip
_TORCH_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class Found:
    """A tensor as it lies in a checkpoint."""

    file: Path
    stored: str  # its name there
    shape: tuple[int, ...]
    dtype: str  # as safetensors writes it: F32, BF16, I64 …


@dataclass(frozen=True)
class Shard:
    """An open file: shape and type of every tensor, and a way to read one."""

    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    read: Callable[[str], Tensor]


def shards(folder: Path) -> list[Path]:
    """The weight files of a folder: a single file or an index's, safetensors before .bin."""
    for name in _SINGLE:
        if (folder / name).is_file():
            return _indexed(folder / name) if name.endswith(".json") else [folder / name]
    if parts := sorted(name for name in (file.name for file in folder.iterdir()) if _PART.fullmatch(name)):
        index = _PART.sub(r"\1\2.index.json", parts[0])
        raise WeightError(
            f"{folder} has {len(parts)} shards ({parts[0]}{', …' if len(parts) > 1 else ''}), but their index is lost:"
            f" fetch {index}, which tells what is in each"
        )
    raise WeightError(f"{folder} has no weights; looked for {', '.join(_SINGLE)}")


def _indexed(index: Path) -> list[Path]:
    require_content(index)
    try:
        listed = read_json(index)["weight_map"]
        by_file: dict[str, set[str]] = {}
        for tensor, name in listed.items():
            by_file.setdefault(name, set()).add(tensor)
        outside = [name for name in by_file if Path(name).name != name]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise WeightError(f"{index} is not an index of weight files: {type(fault).__name__} {fault}") from fault
    if outside:
        raise WeightError(f"{index} names files outside its folder: {', '.join(outside)}")
    if absent := sorted(name for name in by_file if not (index.parent / name).is_file()):
        raise WeightError(f"{index} names files that are not there: {', '.join(absent)}")
    for name, tensors in by_file.items():
        with open_shard(index.parent / name) as shard:
            if lacking := sorted(tensors - shard.tensors.keys()):
                raise WeightError(f"{index} places tensors in {name} that it lacks: {', '.join(lacking)}")
    return [index.parent / name for name in sorted(by_file)]


def read_whole(folder: Path) -> list[Path]:
    """Weight files of a folder that cannot be looked into without reading all of them: the .bin of torch before 1.6."""
    if any((folder / name).is_file() for name in _SINGLE[:2]):
        return []
    return [file for file in sorted(folder.glob("*.bin")) if not _zipped(file) and not is_pointer(file)]


def _zipped(file: Path) -> bool:
    try:
        with file.open("rb") as head:
            return head.read(4) == b"PK\x03\x04"
    except OSError:
        return False


@contextmanager
def open_shard(file: Path) -> Iterator[Shard]:
    """Open a .safetensors or .bin file; if it cannot be read, a WeightError names it."""
    require_content(file)
    opened = _safetensors if file.suffix == ".safetensors" else _pickled
    try:
        shard = opened(file)
    except _UNREADABLE as fault:
        raise WeightError(f"{file} cannot be read, it may be cut short: {_told(fault)}") from fault
    yield shard


def _told(fault: BaseException) -> str:
    """What a fault says, without torch's advice to run a pickle's code, on one line."""
    lines = str(fault).rpartition("WeightsUnpickler error: ")[2].splitlines()
    return lines[0][:400] if lines else type(fault).__name__


def _safetensors(file: Path) -> Shard:
    lazy: Any = safe_open(file, framework="pt", device="cpu")
    views = {name: lazy.get_slice(name) for name in lazy.keys()}  # noqa: SIM118 (it is no dict)
    tensors = {name: (tuple(view.get_shape()), str(view.get_dtype())) for name, view in views.items()}
    return Shard(tensors, lazy.get_tensor)


def _pickled(file: Path) -> Shard:
    if mapped := _zipped(file):  # others cannot be
        _require_stored(file)
    state = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    if not isinstance(state, dict) or not all(isinstance(n, str) and _plain(t) for n, t in state.items()):
        raise ValueError("it holds more than a flat table of tensors")
    tensors = {n: (tuple(t.shape), _TORCH_NAMES.get(t.dtype, str(t.dtype))) for n, t in state.items()}
    return Shard(tensors, state.__getitem__)


def _plain(value: object) -> bool:
    """Whether it is a tensor whose values are there, one after the other."""
    return isinstance(value, Tensor) and value.layout is torch.strided and value.device.type == "cpu"


def _require_stored(file: Path) -> None:
    """Nothing in a zip may become larger than it is there: tensors are read from the file's own bytes."""
    with zipfile.ZipFile(file) as archive:
        packed = [info.filename for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise ValueError(f"{packed[0]} in it is compressed, which torch.save never does")
