"""What the headers of a checkpoint say, held against facts by names and shapes. Of a head d2t and t2d are read too."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from eagle3.config.schema import DraftConfig
from eagle3.errors import WeightError
from eagle3.models.decoder import Decoder, ModelFacts
from eagle3.models.eagle import EagleHead, head_names
from eagle3.models.faults import Faults
from eagle3.models.head_config import CaptureChoice, capture_layers, listed_layers, names_layers
from eagle3.models.head_facts import HeadFacts, Lender
from eagle3.models.head_fields import check_fields
from eagle3.models.head_files import HeadFiles, read_head
from eagle3.models.head_names import spelled
from eagle3.models.head_reader import Widths, require_head, survey_head
from eagle3.models.heads import check_inline, stored_type
from eagle3.models.shards import Found
from eagle3.models.vocab_map import describe_d2t
from eagle3.models.weights import KNOWN_LEFTOVER, Fit, Part, check_parts, part_faults, plan
from eagle3.nn.embedding import Embedding
from eagle3.nn.rope import RopeFacts, frequencies

_META = torch.device("meta")
_PLAIN = RopeFacts(10000.0, 1)


@dataclass(frozen=True)
class HeadLook:
    """A head as its headers tell it; None where that is wrong or not known."""

    files: HeadFiles
    facts: HeadFacts | None
    choice: CaptureChoice | None
    vocabulary: str | None
    d2t_hash: str | None
    warnings: tuple[str, ...]


def look_at_target(folder: Path, facts: ModelFacts, max_seq_len: int, faults: Faults) -> None:
    """Hold the headers in `folder` against the facts of its config.json."""
    faults.sound(lambda: frequencies(facts.rope, facts.head_dim, max_seq_len))
    faults.sound(lambda: _fit_target(folder, replace(facts, rope=_PLAIN)))


def _fit_target(folder: Path, facts: ModelFacts) -> None:
    model = Decoder(facts, max_positions=1, max_seq_len=1, dtype=torch.float32, device=_META)
    fit = Fit.of(model, folder, facts.family.names, tied=facts.tied_names)
    said = list(_said_otherwise(facts, fit.found))
    if lines := said + part_faults(fit.parts, fit.found, fit.extra, shapes=not said):
        raise WeightError(f"{folder} does not fit its config.json:\n" + "\n".join(f"  {line}" for line in lines))


def _said_otherwise(facts: ModelFacts, found: Mapping[str, Found]) -> Iterator[str]:
    """Where the tensors say another number than a field of config.json."""
    names = facts.family.names
    qkv, gate = names["layers.{i}.attn.qkv"], names["layers.{i}.mlp.gate_up"][0]
    heads, kv_heads = (f"{n} · head_dim {facts.head_dim}" for n in (facts.heads, facts.kv_heads))
    rows: tuple[tuple[str, object, str, int, int], ...] = (
        ("vocab_size", facts.vocab, names["embed"][0], 0, facts.vocab),
        ("hidden_size", facts.hidden, names["embed"][0], 1, facts.hidden),
        ("vocab_size", facts.vocab, names["lm_head"][0], 0, facts.vocab),
        ("intermediate_size", facts.intermediate, gate, 0, facts.intermediate),
        ("num_attention_heads", heads, qkv[0], 0, facts.heads * facts.head_dim),
        ("num_key_value_heads", kv_heads, qkv[1], 0, facts.kv_heads * facts.head_dim),
    )
    for key, said, module, axis, wanted in rows:
        name = f"{module}.weight".replace("{i}", "0")
        seen = found.get(name)
        if seen is not None and len(seen.shape) == 2 and seen.shape[axis] != wanted:
            yield f"{key} is {said}, but {name} is {list(seen.shape)}"
    layer = re.compile(re.escape(gate).replace(re.escape("{i}"), r"(\d+)") + r"\.weight")
    numbers = {int(match[1]) for match in map(layer.fullmatch, found) if match}
    if numbers and max(numbers) + 1 != facts.layers:
        yield f"num_hidden_layers is {facts.layers}, but there are tensors of layers 0 to {max(numbers)}"


@dataclass(frozen=True)
class OwnWidths:
    """A target's sizes as a head's own files have them."""

    hidden: int  # Ht
    vocab: int  # V

    @classmethod
    def of(cls, files: HeadFiles) -> "OwnWidths":
        """WeightError where they do not say."""
        width = "target_hidden_size" if "target_hidden_size" in files.fields else "hidden_size"
        for key in (width, "vocab_size"):
            value = files.fields.get(key)
            if type(value) is not int or value < 1:
                raise WeightError(f"{files.folder / 'config.json'}: {key} is {value!r}, must be a positive integer")
        return cls(files.fields[width], files.fields["vocab_size"])


def _head_parts(files: HeadFiles, facts: HeadFacts) -> tuple[dict[str, Part], list[str]]:
    """The public name of every tensor that such a head has -> its place; and those of `files` that are left over."""
    embed = Embedding(facts.vocab, facts.target_hidden, dtype=torch.float32, device=_META)
    lender = Lender(facts.target_hidden, facts.vocab, 0, embed, None)
    plain = replace(facts, rope=_PLAIN)
    head = EagleHead(plain, lender, max_positions=1, max_seq_len=1, dtype=torch.float32, device=_META)
    parts = plan(head, head_names("layers.{i}"))
    spare = files.tensors.keys() - parts.keys() - files.unused(facts)
    return parts, sorted(name for name in spare if not KNOWN_LEFTOVER.fullmatch(name))


def look_at_head(
    folder: Path,
    target: ModelFacts | None,
    cfg: DraftConfig,
    user_layers: Sequence[int] | None,
    max_seq_len: int | None,
    faults: Faults,
) -> HeadLook | None:
    """Hold a head's headers against config.json, the target and what a configuration says; None if unreadable.

    Where the target is not known, what a head says of it is believed, and the layers that it reads are not judged;
    nor is their default where it leaves open what it is, as it may have named some in what is lost.
    `max_seq_len` None: as long as the head was made for.
    """
    files = faults.attempt(lambda: read_head(folder), None)
    if files is None:
        return None
    widths = target or faults.attempt(partial(_believed, files), None)
    if widths is None:
        faults.sound(partial(require_head, files))
        faults.sound(partial(check_fields, files.fields, folder / "config.json"))
        return HeadLook(files, None, None, None, None, ())
    facts, warnings = survey_head(files, widths, cfg, faults)
    sure = not faults.seen
    captured = facts.captured if facts is not None and sure else None
    choice: CaptureChoice | None = None
    if target is None:
        faults.sound(partial(listed_layers, files.config))  # a list, if it has one
    elif facts is not None or user_layers is not None or names_layers(files.config):
        rule = user_layers, files.config, cfg.layer_ids_convention, target.layers, captured
        choice = faults.attempt(partial(capture_layers, *rule), None)
    if facts is None:
        return HeadLook(files, None, choice, None, None, tuple(warnings))
    faults.sound(partial(check_inline, files, facts, cfg))
    faults.sound(partial(stored_type, files))
    longest = max_seq_len or facts.rope.max_position_embeddings
    faults.sound(partial(frequencies, facts.rope, facts.head_dim, longest))
    vocabulary = hashed = None
    if faults.sound(partial(fit_head, files, facts, shapes=sure)) and sure:  # then d2t, if it is there, has its shape
        mapped = facts.mapped and "d2t" in files.tensors
        vocabulary, hashed = describe_d2t(files.read("d2t") if mapped else None, facts.vocab)
    return HeadLook(files, facts, choice, vocabulary, hashed, tuple(warnings))


def _believed(files: HeadFiles) -> Widths | None:
    """The sizes of a target that is not known; None where the head leaves them open."""
    fields, fc = files.fields, files.tensors.get("fc.weight")
    if fields.get("hidden_size") is None or fields.get("vocab_size") is None:
        return None
    own = OwnWidths.of(files)
    wide = fc is not None and "target_hidden_size" not in fields and fc.shape[-1:] and fc.shape[-1] % own.hidden
    return None if wide else own  # else it is another width than the head's


def fit_head(files: HeadFiles, facts: HeadFacts, *, shapes: bool = True) -> list[str]:
    """The public names of a head's tensors; WeightError, by the names in its files, as `check_parts` raises it."""
    parts, extra = _head_parts(files, facts)
    names = spelled(parts, {name: found.stored for name, found in files.tensors.items()})
    check_parts(
        files.folder,
        {names[name]: part for name, part in parts.items()},
        {found.stored: found for found in files.tensors.values()},
        [files.tensors[name].stored for name in extra],
        shapes=shapes,
    )
    return list(parts)
