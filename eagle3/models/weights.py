"""Fills a model from a checkpoint's files, strictly: every tensor has one place, every place one tensor."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from eagle3.errors import WeightError
from eagle3.models.families import Names
from eagle3.models.shards import Found, open_shard, shards
from eagle3.nn.linear import Linear
from eagle3.nn.norm import RMSNorm

_MOST = 8  # lines of a kind
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
KNOWN_LEFTOVER = re.compile(r"(.*\.)?rotary_emb\.inv_freq")  # a table that older checkpoints ship; we make our own


@dataclass(frozen=True)
class Part:
    """Where one tensor of a checkpoint goes."""

    parameter: str
    into: Tensor  # a view of the parameter: all of it, or the rows of one fused projection


@dataclass(frozen=True)
class LoadReport:
    """What was read: (parameter, "file: tensor") for every tensor copied, and the tensors passed over."""

    loaded: tuple[tuple[str, str], ...]
    ignored: tuple[str, ...]


def plan(model: nn.Module, names: Names) -> dict[str, Part]:
    """Checkpoint tensor -> its place, for every parameter and persistent buffer of a model."""
    parts: dict[str, Part] = {}
    for parameter, value in model.state_dict().items():
        module, _, leaf = parameter.rpartition(".")
        layer = re.search(r"(?<=\.)\d+(?=\.|$)", module)
        key = re.sub(r"(?<=\.)\d+(?=\.|$)", "{i}", module, count=1)
        owner = model.get_submodule(module)
        rows = owner.outs if isinstance(owner, Linear) else (len(value),)
        if module:
            sources = [f"{s.replace('{i}', layer[0] if layer else '')}.{leaf}" for s in names[key]]
        else:
            sources = list(names[leaf])  # the model's own
        pieces = value.split(list(rows)) if len(sources) > 1 else (value,)
        parts.update({s: Part(parameter, piece) for s, piece in zip(sources, pieces, strict=True)})
    return parts


def _survey(files: Iterable[Path], rename: Callable[[str], str | None]) -> dict[str, Found]:
    """All tensors of a checkpoint by the names a plan uses; what comes twice is an error."""
    found: dict[str, Found] = {}
    twice = []
    for file in files:
        with open_shard(file) as shard:
            for stored, (shape, dtype) in shard.tensors.items():
                name = rename(stored)
                if name is None:
                    continue
                if name in found:
                    twice.append(f"{name}: in {found[name].file.name} and again in {file.name}")
                found[name] = Found(file, stored, shape, dtype)
    if twice:
        raise WeightError("tensors that come twice:\n" + "\n".join(f"  {line}" for line in twice))
    return found


def part_faults(
    parts: Mapping[str, Part], found: Mapping[str, Found], extra: Iterable[str], *, shapes: bool = True
) -> list[str]:
    """What was `found`, held against a plan by its names: one line for all that is missing, left over or otherwise.

    `extra` is left over. Of each kind there are `_MOST` lines, and a count of the rest. Without `shapes` those are not
    judged: they follow from a number that is wrong and told already.
    """
    kinds: dict[str, list[str]] = {kind: [] for kind in ("missing", "left over", "shape", "type")}
    kinds["missing"] = [f"{name} (for {parts[name].parameter})" for name in parts if name not in found]
    kinds["left over"] = [f"{name} {list(found[name].shape)}" for name in extra]
    for name in (n for n in parts if n in found):
        seen, into = found[name], parts[name].into
        if seen.shape != tuple(into.shape) and shapes:
            kinds["shape"].append(f"{name} is {list(seen.shape)}, the model wants {list(into.shape)}")
        elif into.is_floating_point() != (seen.dtype in _FLOATS):
            kinds["type"].append(f"{name} is {seen.dtype}, the model wants {into.dtype}")
    lines = []
    for kind, told in kinds.items():
        lines += [f"{kind}: {line}" for line in told[:_MOST]]
        if len(told) > _MOST:
            lines.append(f"{kind}: … and {len(told) - _MOST} more")
    return lines


def check_parts(
    folder: Path, parts: Mapping[str, Part], found: Mapping[str, Found], extra: Iterable[str], *, shapes: bool = True
) -> None:
    """Raise one WeightError with all that `part_faults` tells."""
    if problems := part_faults(parts, found, extra, shapes=shapes):
        raise WeightError(f"{folder} does not fit the model:\n" + "\n".join(f"  {line}" for line in problems))


def _check_tied(found: Mapping[str, Found], copies: Mapping[str, str]) -> None:
    for copy, original in copies.items():
        values = []
        for seen in (found[copy], found[original]):
            with open_shard(seen.file) as shard:
                values.append(shard.read(seen.stored))
        if not torch.equal(*values):
            raise WeightError(f"the config ties {copy} to {original}, but the checkpoint ships two that differ")


@dataclass(frozen=True)
class Fit:
    """A model's places and a checkpoint's tensors, by name; nothing is read or judged yet."""

    parts: Mapping[str, Part]
    found: Mapping[str, Found]
    copies: Mapping[str, str]  # tied tensors that are shipped all the same -> their originals
    ignored: tuple[str, ...]
    extra: tuple[str, ...]  # left over

    @classmethod
    def of(
        cls,
        model: nn.Module,
        folder: Path,
        names: Names,
        *,
        tied: Mapping[str, str] | None = None,
        rename: Callable[[str], str | None] = lambda name: name,
    ) -> "Fit":
        """From the headers in `folder`; the rest as in `load_weights`."""
        parts = plan(model, names)
        found = _survey(shards(folder), rename)
        copies = {c: o for c, o in (tied or {}).items() if c in found and c not in parts}
        for copy, original in list(copies.items()):
            if original not in found:
                found[original] = found.pop(copy)
                del copies[copy]
        spare = [name for name in found if name not in parts and name not in copies]
        ignored = tuple(name for name in spare if KNOWN_LEFTOVER.fullmatch(name))
        return cls(parts, found, copies, ignored, tuple(name for name in spare if name not in ignored))


def load_weights(
    model: nn.Module,
    folder: Path,
    names: Names,
    *,
    tied: Mapping[str, str] | None = None,
    rename: Callable[[str], str | None] = lambda name: name,
    progress: Callable[[int, int], None] | None = None,
) -> LoadReport:
    """Read `folder` into `model`, casting to its types; all or a WeightError that lists every fault.

    `names` maps modules to the checkpoint's, after `rename` (None passes a tensor over). `tied` names tensors
    that are copies of others: not needed, but one that is shipped must equal its original, and may stand in
    for it. `progress(done, total)` is told bytes of the model filled.
    """
    fit = Fit.of(model, folder, names, tied=tied, rename=rename)
    parts, found = fit.parts, fit.found
    check_parts(folder, parts, found, fit.extra)
    _check_tied(found, fit.copies)

    done, total = 0, sum(part.into.nbytes for part in parts.values())
    loaded, broken = [], []
    for file in sorted({found[name].file for name in parts}):
        with open_shard(file) as shard:
            for name, part in parts.items():
                if found[name].file != file:
                    continue
                part.into.copy_(shard.read(found[name].stored))
                if not bool(part.into.isfinite().all()):
                    broken.append(f"{file.name}: {found[name].stored} holds NaN or infinity as {part.into.dtype}")
                loaded.append((part.parameter, f"{file.name}: {found[name].stored}"))
                done += part.into.nbytes
                if progress is not None:
                    progress(done, total)
    if broken:
        raise WeightError(f"{folder} holds what is no number:\n" + "\n".join(f"  {line}" for line in broken))
    return LoadReport(tuple(loaded), (*fit.ignored, *fit.copies))


def dummy_weights(model: nn.Module, seed: int = 0, std: float = 0.02) -> None:
    """Random weights of a real model's scale, the same for a seed on a device; norms one, biases zero."""
    makers: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for module in model.modules():
            for name, value in module.named_parameters(recurse=False):
                if isinstance(module, RMSNorm):
                    value.fill_(1.0)
                elif name == "bias":
                    value.zero_()
                else:
                    if value.device not in makers:
                        makers[value.device] = torch.Generator(value.device).manual_seed(seed)
                    value.normal_(0.0, std, generator=makers[value.device])
