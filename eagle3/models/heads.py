"""From a folder to a head that can run, and the report of where each of its tensors came from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from eagle3.config.schema import Architecture, DraftConfig, LayerIds
from eagle3.errors import ConfigError, Problem, UnsupportedError
from eagle3.models.eagle import EagleHead, head_names
from eagle3.models.head_config import CaptureChoice, capture_layers
from eagle3.models.head_facts import HeadFacts, Lender
from eagle3.models.head_files import HeadFiles, read_head
from eagle3.models.head_reader import head_facts
from eagle3.models.vocab_map import describe_d2t, spread_d2t
from eagle3.models.weights import dummy_weights, load_weights

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_EMBED = "embed_tokens.weight"
_TYPED = "layers.0.mlp.gate_proj.weight"  # the tensor whose type is the head's


@dataclass(frozen=True)
class HeadReport:
    """How a head came to be; `str` is the whole of it, one line a fact."""

    origins: tuple[tuple[str, str, str], ...]  # (tensor, "draft" | "borrowed" | "derived", from where)
    capture: CaptureChoice
    vocabulary: str
    d2t_hash: str | None
    dtype: str
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        width = max(len(name) for name, _, _ in self.origins)
        hashed = f", d2t {self.d2t_hash}" if self.d2t_hash else ""
        lines = [
            f"captures: {self.capture}",
            f"vocabulary: {self.vocabulary}{hashed}",
            f"dtype: {self.dtype}",
            *(f"{name:{width}}  {origin:8}  {detail}" for name, origin, detail in self.origins),
            *(f"warning: {line}" for line in self.warnings),
        ]
        return "\n".join(lines)


def load_head(
    folder: Path,
    target: Lender,
    cfg: DraftConfig,
    user_layers: Sequence[int] | None,
    *,
    max_positions: int,
    max_seq_len: int,
    device: torch.device,
    dtype: torch.dtype | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[EagleHead, HeadReport]:
    """The head in `folder`, in `dtype` (None: as stored). It reads the layers `report.capture.outputs`.

    Raises WeightError for a broken head, UnsupportedError for one that computes otherwise, ConfigError where
    `cfg` or the user's layers do not fit it.
    """
    files = read_head(folder)
    facts, warnings = head_facts(files, target, cfg)
    check_inline(files, facts, cfg)
    choice = capture_layers(user_layers, files.config, cfg.layer_ids_convention, target.layers, facts.captured)
    stored = stored_type(files)
    head = EagleHead(
        facts,
        target,
        max_positions=max_positions,
        max_seq_len=max_seq_len,
        dtype=dtype or _DTYPES[stored],
        device=device,
    )
    origins = _fill(head, files, progress)
    if _EMBED in files.tensors:
        warnings += _compare(files, head)
    return head, _report(head, choice, origins, stored, warnings)


def check_inline(files: HeadFiles, facts: HeadFacts, cfg: DraftConfig) -> None:
    """Raise ConfigError where the facts that a configuration carries are not the files'."""
    if cfg.architecture is not None and (lines := facts.differences(cfg.architecture)):
        advice = "choose the group of this checkpoint, or draft=eagle3, which takes its facts from them, or mend it"
        text = f"does not go with the files in {files.folder}: {advice}:\n" + "\n".join(lines)
        raise ConfigError([Problem("draft.architecture", text, cfg.architecture.architecture)])


def stored_type(files: HeadFiles) -> str:
    """The type of a head's weights as safetensors writes it; UnsupportedError for one that is no float of ours."""
    stored = files.tensors[_TYPED].dtype
    if stored not in _DTYPES:
        raise UnsupportedError(f"{files.where(_TYPED)} is {stored}, which is not supported")
    return stored


def _fill(head: EagleHead, files: HeadFiles, progress: Callable[[int, int], None] | None) -> list[tuple[str, str, str]]:
    """Reads the weights; returns the origin of every tensor in the files."""
    facts = head.facts
    unused = files.unused(facts)
    official = facts.layers == 1 and any("midlayer." in found.stored for found in files.tensors.values())

    stored = {found.stored: name for name, found in files.tensors.items()}

    def rename(name: str) -> str | None:
        public = stored.get(name)
        if public is None or public in unused:
            return None
        return public.replace("layers.0.", "midlayer.") if official else public

    names = head_names("midlayer" if official else "layers.{i}")
    loaded = load_weights(head, files.folder, names, rename=rename, progress=progress)
    origins = [(parameter, "draft", where) for parameter, where in loaded.loaded]
    for name in unused & files.tensors.keys():
        origins.append((name, "draft", f"{files.where(name)}, not needed"))
    for name in (*files.dropped, *loaded.ignored):
        origins.append((name, "draft", "of no use outside training"))
    return origins


def _compare(files: HeadFiles, head: EagleHead) -> list[str]:
    """A line on how far a shipped embedding is from the target's, if it is another one."""
    own, lent = files.read(_EMBED), head.lender.embed.weight
    used = "its own is used" if head.embed is not None else "the target's is used (draft.embedding)"
    if own.shape != lent.shape:
        return []
    far = max(
        float((a.double() - b.detach().cpu().double()).abs().max())
        for a, b in zip(torch.split(own, 4096), torch.split(lent, 4096), strict=True)
    )
    return [f"the head ships an embedding that differs from the target's by up to {far:.3g}; {used}"] * (far > 0)


def _report(
    head: EagleHead,
    choice: CaptureChoice,
    origins: list[tuple[str, str, str]],
    stored: str,
    warnings: list[str],
) -> HeadReport:
    """Adds what is borrowed or derived to what was read."""
    facts, positions = head.facts, head.rope.cos.shape[0]
    vocabulary, hashed = describe_d2t(head.d2t, facts.vocab)
    if head.embed is None:
        origins.append(("embed.weight", "borrowed", "the target's embedding"))
    if head.lm_head is None:
        origins.append(("lm_head.weight", "borrowed", "the target's output head"))
    if head.d2t is None:
        origins.append(("d2t", "derived", vocabulary))
    made_for = f"{positions} positions, made for {facts.rope.max_position_embeddings}"
    rope = f"theta {facts.rope.theta:g}, scaling {facts.rope.scaling or 'none'}, {made_for}"
    origins.append(("rope", "derived", rope))
    dtype = f"{str(head.dtype).removeprefix('torch.')}, stored as {stored}"
    return HeadReport(tuple(sorted(origins)), choice, vocabulary, hashed, dtype, tuple(warnings))


def dummy_head(
    architecture: Architecture,
    target: Lender,
    user_layers: Sequence[int] | None,
    *,
    max_positions: int,
    max_seq_len: int,
    device: torch.device,
    dtype: torch.dtype,
    own_embedding: bool = False,
    normed_twice: bool = False,
    seed: int = 0,
) -> tuple[EagleHead, HeadReport]:
    """A head of random weights and the right shapes (`load_format: dummy`)."""
    choice = capture_layers(user_layers, {}, LayerIds.auto, target.layers)
    facts = HeadFacts.from_architecture(architecture, target, len(choice.outputs), own_embedding)
    facts = replace(facts, normed_twice=normed_twice)
    head = EagleHead(facts, target, max_positions=max_positions, max_seq_len=max_seq_len, dtype=dtype, device=device)
    dummy_weights(head, seed)
    if head.d2t is not None:
        head.d2t.copy_(spread_d2t(facts.vocab, facts.draft_vocab))
    origins = [(name, "derived", "random") for name in head.state_dict() if name != "d2t"]
    origins += [("d2t", "derived", "spread evenly")] * facts.mapped
    return head, _report(head, choice, origins, "nothing", [])
