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
from eagle3.models.head_config import CaptureChoice, capture_layers
from eagle3.models.head_facts import HeadFacts, Lender
from eagle3.models.head_files import HeadFiles, read_head
from eagle3.models.head_reader import survey_head
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


def head_parts(files: HeadFiles, facts: HeadFacts) -> tuple[dict[str, Part], list[str]]:
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
    target: ModelFacts,
    cfg: DraftConfig,
    user_layers: Sequence[int] | None,
    max_seq_len: int,
    faults: Faults,
) -> HeadLook | None:
    """Hold a head's headers against config.json, the target and what a configuration says; None if unreadable."""
    files = faults.attempt(lambda: read_head(folder), None)
    if files is None:
        return None
    facts, warnings = survey_head(files, target, cfg, faults)
    sure = not faults.seen
    captured = facts.captured if facts is not None and sure else None
    choice = faults.attempt(
        lambda: capture_layers(user_layers, files.config, cfg.layer_ids_convention, target.layers, captured), None
    )
    if facts is None:
        return HeadLook(files, None, choice, None, None, tuple(warnings))
    faults.sound(partial(check_inline, files, facts, cfg))
    faults.sound(partial(stored_type, files))
    faults.sound(partial(frequencies, facts.rope, facts.head_dim, max_seq_len))
    vocabulary = hashed = None
    if faults.sound(partial(_fit_head, files, facts, sure)) and sure:  # then d2t, if it is there, has its shape
        mapped = facts.mapped and "d2t" in files.tensors
        vocabulary, hashed = describe_d2t(files.read("d2t") if mapped else None, facts.vocab)
    return HeadLook(files, facts, choice, vocabulary, hashed, tuple(warnings))


def _fit_head(files: HeadFiles, facts: HeadFacts, shapes: bool) -> None:
    parts, extra = head_parts(files, facts)
    check_parts(files.folder, parts, files.tensors, extra, shapes=shapes)
