"""What lies in a head's folder: config.json, and every tensor under its public name."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3.errors import WeightError
from eagle3.models.head_config import read_head_config
from eagle3.models.head_facts import HeadFacts
from eagle3.models.head_fields import flat_fields
from eagle3.models.head_names import public_names
from eagle3.models.shards import Found, open_shard, shards


@dataclass(frozen=True)
class HeadFiles:
    """What lies in a head's folder: config.json, and every tensor under its public name."""

    folder: Path
    config: Mapping[str, Any]
    fields: Mapping[str, Any]  # those of config.json on one level
    tensors: Mapping[str, Found]
    dropped: tuple[str, ...]  # tensors that a trainer left behind

    def unused(self, facts: HeadFacts) -> frozenset[str]:
        """Tensors that may be there and that such a head does without."""
        spare = {"t2d": True, "d2t": not facts.mapped, "embed_tokens.weight": not facts.own_embedding}
        return frozenset(name for name, unused in spare.items() if unused)

    def read(self, name: str) -> Tensor:
        """A tensor by its public name."""
        found = self.tensors[name]
        with open_shard(found.file) as shard:
            return shard.read(found.stored)

    def where(self, name: str) -> str:
        """A tensor for messages: file, name there, shape."""
        found = self.tensors[name]
        return f"{found.file}: {found.stored} {list(found.shape)}"


def read_head(folder: Path) -> HeadFiles:
    """Look into a head's folder; WeightError for what cannot be read, UnsupportedError for another kind of head."""
    config = read_head_config(folder)
    fields = flat_fields(config, folder / "config.json")
    seen: list[Found] = []
    for file in shards(folder):
        with open_shard(file) as shard:
            seen += [Found(file, stored, shape, dtype) for stored, (shape, dtype) in shard.tensors.items()]
    names = public_names(found.stored for found in seen)
    tensors: dict[str, Found] = {}
    for found in seen:
        name = names[found.stored]
        if name is None:
            continue
        if name in tensors:
            raise WeightError(f"{folder}: {tensors[name].stored} and {found.stored} are both {name}")
        tensors[name] = found
    return HeadFiles(folder, config, fields, tensors, tuple(n for n, public in names.items() if public is None))
