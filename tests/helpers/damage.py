"""Ways to damage a checkpoint's folder."""

import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

SAFE, BIN, CONFIG, INDEX = "model.safetensors", "pytorch_model.bin", "config.json", "model.safetensors.index.json"
HUGE = 2 << 30  # bytes that a bomb becomes
Damage = Callable[[Path], object]


def text(file: str, content: str | bytes) -> Damage:
    """Other content."""
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / file).write_bytes(raw)


def say(**fields: object) -> Damage:
    """Other fields in config.json."""

    def apply(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text()) | fields
        (folder / CONFIG).write_text(json.dumps(config))

    return apply


def header(change: Callable[[dict[str, Any], str], object]) -> Damage:
    """Another header of the .safetensors, over the same data: `change` gets it, and the first tensor's name."""

    def apply(folder: Path) -> None:
        raw = (folder / SAFE).read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        told = json.loads(raw[8 : 8 + size])
        change(told, next(name for name in told if name != "__metadata__"))
        new = json.dumps(told).encode()
        (folder / SAFE).write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + size :])

    return apply


def said(**fields: object) -> Damage:
    """Other words of the header on its first tensor."""
    return header(lambda told, name: told[name].update(fields))


def raw_header(new: bytes, size: int | None = None) -> Damage:
    """These bytes for a header, said to be of `size`."""

    def apply(folder: Path) -> None:
        (folder / SAFE).write_bytes(struct.pack("<Q", len(new) if size is None else size) + new)

    return apply


def cut(file: str, keep: Callable[[int], int]) -> Damage:
    """The beginning of a file alone."""

    def apply(folder: Path) -> None:
        os.truncate(folder / file, keep((folder / file).stat().st_size))

    return apply


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Damage:
    """Other tensors."""

    def apply(folder: Path) -> None:
        held = load_file(folder / SAFE)
        change(held)
        save_file(held, folder / SAFE, metadata={"format": "pt"})

    return apply


def index(places: object) -> Damage:
    """An index in the place of the single file, which becomes a shard of it."""

    def apply(folder: Path) -> None:
        (folder / SAFE).rename(folder / "a.safetensors")
        raw = places if isinstance(places, str) else json.dumps({"weight_map": places})
        (folder / INDEX).write_text(raw)

    return apply


def no_file(file: str) -> Damage:
    """A folder of that name."""

    def apply(folder: Path) -> None:
        (folder / file).unlink()
        (folder / file).mkdir()

    return apply


def loop(file: str) -> Damage:
    """A link to itself."""

    def apply(folder: Path) -> None:
        (folder / file).unlink()
        (folder / file).symlink_to(file)

    return apply


def as_bin(change: Callable[[dict[Any, Any]], object], zipped: bool = True) -> Damage:
    """The tensors as a .bin, with something else in it."""

    def apply(folder: Path) -> None:
        held: dict[Any, Any] = dict(load_file(folder / SAFE))
        (folder / SAFE).unlink()
        held = new if isinstance(new := change(held), dict) else held
        torch.save(held, folder / BIN, _use_new_zipfile_serialization=zipped)

    return apply


class Code:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.file),)


def code(how: str) -> Damage:
    """A .bin that runs code: as torch packs it now, as it did of old, and as a bare pickle."""

    def apply(folder: Path) -> None:
        (folder / SAFE).unlink()
        payload = {"fc.weight": Code(folder / "executed")}
        if how == "bare":
            (folder / BIN).write_bytes(pickle.dumps(payload, protocol=2))
        else:
            torch.save(payload, folder / BIN, _use_new_zipfile_serialization=how == "zip")

    return apply


def pickled(stream: bytes) -> Damage:
    """A .bin whose pickle is this."""

    def apply(folder: Path) -> None:
        as_bin(lambda _: {"a": torch.ones(1)})(folder)
        with zipfile.ZipFile(folder / BIN) as old, zipfile.ZipFile(folder / "new", "w") as new:
            for name in old.namelist():
                new.writestr(name, stream if name.endswith("data.pkl") else old.read(name))
        (folder / "new").replace(folder / BIN)

    return apply


def bomb(member: str) -> Damage:
    """A .bin of a few hundred KiB, one member of which is said to become `HUGE` bytes of zeros, and does."""

    def apply(folder: Path) -> None:
        as_bin(lambda _: {"fc.weight": torch.zeros(4)})(folder)
        once = zlib.compressobj(9, zlib.DEFLATED, -15)
        block = once.compress(bytes(1 << 24)) + once.flush(zlib.Z_FULL_FLUSH)
        packed = block * (HUGE >> 24) + once.flush()
        with zipfile.ZipFile(folder / BIN) as old, zipfile.ZipFile(folder / "new", "w") as new:
            for name in old.namelist():
                new.writestr(name, packed if name.endswith(member) else old.read(name))
            wide = next(info for info in new.infolist() if info.filename.endswith(member))
        raw = bytearray((folder / "new").read_bytes())
        central = raw.rindex(wide.filename.encode()) - 46
        for at in (wide.header_offset + 8, central + 10):  # method, …, packed size, size
            struct.pack_into("<H", raw, at, zipfile.ZIP_DEFLATED)
            struct.pack_into("<I", raw, at + 14, HUGE)
        (folder / BIN).write_bytes(raw)

    return apply


def squeezed(folder: Path) -> None:
    """A .bin that somebody packed anew: its tensors are no longer the file's bytes."""
    as_bin(lambda _: None)(folder)
    with zipfile.ZipFile(folder / BIN) as old, zipfile.ZipFile(folder / "new", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    (folder / "new").replace(folder / BIN)


def put(name: Any, value: Any) -> Callable[[dict[Any, Any]], object]:
    return lambda held: held.update({name: value})
