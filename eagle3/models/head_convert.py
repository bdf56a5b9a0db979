"""A head from one dialect to another: the same tensors, bit for bit, and the same facts in other words."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from eagle3.config.schema import DraftConfig, LayerIds
from eagle3.errors import ConfigError, Problem, RunError, UnsupportedError
from eagle3.models.head_config import LAYER_IDS, list_meaning, listed_layers, reads_final_norm
from eagle3.models.head_dialects import DIALECTS, Dialect
from eagle3.models.head_facts import HeadFacts
from eagle3.models.head_files import HeadFiles, read_head
from eagle3.models.head_reader import head_facts, require_head
from eagle3.models.head_write import t2d_of, write_head
from eagle3.models.headers import OwnWidths, fit_head

# Fields without a say in the maths that go along.
_CARRIED = (
    "torch_dtype",
    "dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "initializer_range",
    "use_cache",
    "target_hidden_size",  # some name it where it is hidden_size too
)


@dataclass(frozen=True)
class Target:
    """A target that a head may be of: what its list of layers is held against."""

    hidden: int  # Ht
    vocab: int  # V
    layers: int  # L


@dataclass(frozen=True)
class Converted:
    """What was written."""

    folder: Path
    dialect: str
    tensors: tuple[str, ...]
    layers: tuple[int, ...] | None  # the list of captured layers as it was written; None: no list, the default
    left_out: tuple[str, ...]  # tensors that are of no use, or that the dialect does without
    warnings: tuple[str, ...]


def convert_head(folder: Path, to: str, out: Path, cfg: DraftConfig, target: Target | None = None) -> Converted:
    """Write the head in `folder` to `out`, an empty or new folder, in the dialect `to`.

    `target` is held against a list of layers that does not tell its meaning, if the head's sizes are its.
    Raises WeightError and UnsupportedError as `load_head` does, the latter too for what the dialect has no words
    for; ConfigError where `out` is in use, or nothing tells what a list of layers means; RunError where the disk
    refuses.
    """
    _check_free(out)
    dialect, files = DIALECTS[to], read_head(folder)
    require_head(files)
    widths = OwnWidths.of(files)
    facts, warnings = head_facts(files, widths, cfg)
    wanted = fit_head(files, facts)
    wanted += sorted({"d2t"} & files.tensors.keys() - set(wanted))  # an all-zero one is kept too
    if lacking := dialect.lacks(facts):
        raise UnsupportedError(f"{to} has no words for {', '.join(lacking)} of {folder}{_others(facts)}")
    if target is not None and (target.hidden, target.vocab) != (widths.hidden, widths.vocab):
        target = None
    ids, told = _ids(files, dialect, to, cfg.layer_ids_convention, target)
    tensors = {dialect.stored(name, facts): files.read(name).clone().contiguous() for name in wanted}
    if dialect.maps_back and "d2t" in tensors:
        tensors["t2d"] = t2d_of(tensors["d2t"], facts.vocab)
    carried = {key: files.fields[key] for key in _CARRIED if key in files.fields}
    try:
        write_head(out, tensors, dialect.config(facts, carried, ids, told))
    except (OSError, SafetensorError) as fault:
        raise RunError(f"{out} cannot be written: {fault}") from fault
    assert head_facts(read_head(out), widths, DraftConfig())[0] == facts
    spare = files.tensors.keys() - set(wanted) - ({"t2d"} & tensors.keys())
    left = [*files.dropped, *sorted(files.tensors[name].stored for name in spare)]
    return Converted(out, to, tuple(sorted(tensors)), None if ids is None else tuple(ids), tuple(left), tuple(warnings))


def _others(facts: HeadFacts) -> str:
    fit = [name for name, dialect in DIALECTS.items() if not dialect.lacks(facts)]
    return f"; {' and '.join(fit)} has" if fit else "; no dialect has all of them"


def _ids(
    files: HeadFiles, dialect: Dialect, to: str, convention: LayerIds, target: Target | None
) -> tuple[list[int] | None, LayerIds | None]:
    """The list of captured layers in the dialect's meaning, and that meaning, if known; None: no list."""
    listed = listed_layers(files.config)
    if listed is None or reads_final_norm(files.config):
        return None, None
    try:
        layers = target.layers if target else None
        meaning = list_meaning(listed, files.config, layers) if convention is LayerIds.auto else convention
    except ConfigError:
        if dialect.ids is LayerIds.input or files.config.get(LAYER_IDS) is not None:
            raise
        return listed, None  # nested as before, so that readers take it as they took it before
    outputs = [i - (meaning is LayerIds.input) if i >= 0 else i for i in listed]
    shift = int(dialect.ids is LayerIds.input)
    if shift and -1 in outputs:
        raise UnsupportedError(f"{to} has no words for the final norm (-1) in {LAYER_IDS} {listed}")
    return [i + shift if i >= 0 else i for i in outputs], dialect.ids


def _check_free(out: Path) -> None:
    try:
        used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as fault:
        raise ConfigError([Problem("--out", f"cannot be used: {fault}", str(out), "--out")]) from fault
    if used:
        raise ConfigError([Problem("--out", "is in use: choose a new or an empty folder", str(out), "--out")])
