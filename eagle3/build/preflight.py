"""What a configuration's files tell before a tensor is loaded: from their headers, all problems at once."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from eagle3.build.folders import Folders, wants_head
from eagle3.build.memory import all_bytes, free_bytes
from eagle3.build.preflight_facts import rules_again, with_facts
from eagle3.build.preflight_memory import memory_fit
from eagle3.build.preflight_text import compare_tokenizers
from eagle3.build.target import Text, check_inline, load_text
from eagle3.config.facts import longest_request
from eagle3.config.load import Composed
from eagle3.config.schema import EngineConfig
from eagle3.errors import ConfigError, Problem
from eagle3.models.decoder import ModelFacts
from eagle3.models.faults import Faults
from eagle3.models.headers import HeadLook, look_at_head, look_at_target
from eagle3.models.shards import read_whole

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preflight:
    """What was found."""

    config: EngineConfig  # with the facts of the files
    target: ModelFacts | None  # None: not known, or what is wrong with it says why
    text: Text  # its tokenizer and ends, where its files are here
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    notes: tuple[str, ...]  # what a head's files say and is not obeyed
    report: tuple[tuple[str, str], ...]  # what it is, in words


def preflight(composed: Composed, folders: Folders) -> Preflight:
    """Hold the headers in `folders` against each other, against config.json and against the configuration."""
    cfg, report = composed.config, [("not here", name) for name in folders.absent]
    for_target = Faults("target.checkpoint", cfg.target.checkpoint)
    for_head = Faults("draft.checkpoint", cfg.draft.checkpoint)
    target = for_target.attempt(lambda: _target(cfg, folders.target, for_target, report), None)
    look = None
    if folders.head is not None and not _unread(folders.head, report):
        longest = longest_request(cfg.runtime, target.max_positions if target else None)
        look = look_at_head(folders.head, target, cfg.draft, cfg.spec.layers_to_capture, longest, for_head)
    if look is not None:
        report += _of_head(look, target.layers if target else None)
    sound, whole = not for_target.seen, not for_target.seen and not for_head.seen
    filled = with_facts(cfg, target if sound else None, look if whole else None)
    problems = [*folders.problems, *for_target.problems(), *for_head.problems()]
    warnings = list(folders.warnings)
    text: Text = None, frozenset()
    if folders.target is not None and target is not None:  # transformers reads config.json with it
        text, wrong, odd = _text(cfg, folders.target, folders.head, report)
        problems, warnings = problems + wrong, warnings + odd
    told = {problem.key for problem in problems}
    if not whole or (cfg.spec.layers_to_capture is None and wants_head(cfg) and (look is None or look.choice is None)):
        told.add("spec.layers_to_capture")  # who chooses them is not known
    broken, warned = rules_again(cfg, filled, told)
    broken, warned = (list(map(partial(_in_file, cfg, folders), found)) for found in (broken, warned))
    report += _positions(filled)
    return Preflight(
        filled,
        target,
        text,
        tuple(map(composed.placed, problems + broken)),
        tuple(map(composed.placed, warnings + warned)),
        () if look is None else look.warnings,
        tuple(report),
    )


def look_before(composed: Composed, folders: Folders, device: torch.device) -> Preflight:
    """What the files tell where nothing is wrong; else ConfigError with all problems.

    Those of the files, and of what is more than a GPU has free, or a CPU at all.
    """
    found = preflight(composed, folders)
    problems = list(found.problems)
    there = free_bytes(device) if device.type == "cuda" else all_bytes(device)
    problems += memory_fit(found.config, composed.shape, there, sure=True)[0]
    if problems:
        raise ConfigError(problems)
    for warning in found.warnings:
        log.warning("%s", warning)
    for what, words in found.report:
        log.log(logging.INFO if what == "positions" else logging.DEBUG, "%s: %s", what, words)
    return found


def _target(cfg: EngineConfig, folder: Path | None, faults: Faults, report: list[tuple[str, str]]) -> ModelFacts | None:
    """The target's facts, and its headers held against them."""
    if folder is None:
        return ModelFacts.from_architecture(cfg.target.architecture) if cfg.target.architecture else None
    facts = ModelFacts.from_hf(folder)
    faults.sound(lambda: check_inline(cfg.target, facts))
    if not _unread(folder, report):
        look_at_target(folder, facts, longest_request(cfg.runtime, facts.max_positions), faults)
    return facts


def _text(
    cfg: EngineConfig, target: Path, head: Path | None, report: list[tuple[str, str]]
) -> tuple[Text, list[Problem], list[Problem]]:
    """The target's tokenizer and ends; problems and warnings of them, and of a head's tokenizer beside it."""
    faults = Faults("target.checkpoint", cfg.target.checkpoint)
    text = faults.attempt(lambda: load_text(target), (None, frozenset[int]()))
    if text[0] is None:
        report += [("tokenizer", "none: prompts as token ids only")] * (not faults.seen)
        return text, faults.problems(), []
    return text, *(compare_tokenizers(text[0], head) if head is not None else ([], []))


def _in_file(cfg: EngineConfig, folders: Folders, problem: Problem) -> Problem:
    """With the file as its origin where it is one of a fact that a configuration leaves to it."""
    for key, folder, inline in (
        ("target.", folders.target, cfg.target.architecture),
        ("draft.", folders.head, cfg.draft.architecture),
    ):
        if folder is not None and inline is None and problem.key.startswith(f"{key}architecture."):
            return replace(problem, origin=str(folder / "config.json"))
    return problem


def _unread(folder: Path, report: list[tuple[str, str]]) -> bool:
    """Whether there are weights that cannot be looked into; they are told in `report`."""
    files = read_whole(folder)
    why = "a .bin of before torch 1.6 tells nothing before all of it is loaded"
    report += [("not read", f"{file}: {why}") for file in files]
    return bool(files)


def _of_head(look: HeadLook, layers: int | None) -> Iterator[tuple[str, str]]:
    """What tells two heads apart. Of transformers' hidden states the last is the final norm's output."""
    if layers is None:
        yield "not judged", "the head against the target, as the target's facts are not known"
    if look.choice is not None and layers is not None:
        theirs = [layers if i < 0 else i + 1 if i < layers - 1 else "none" for i in look.choice.outputs]
        yield "captures", f"{look.choice}; hidden_states [{', '.join(map(str, theirs))}] of transformers"
    if look.vocabulary is not None:
        yield "vocabulary", look.vocabulary + (f", d2t {look.d2t_hash}" if look.d2t_hash else "")
    verifier = (look.files.config.get("speculators_config") or {}).get("verifier")
    if isinstance(verifier, dict) and isinstance(name := verifier.get("name_or_path"), str):
        yield "made for", name


def _positions(cfg: EngineConfig) -> Iterator[tuple[str, str]]:
    """Where requests may outgrow the head."""
    facts, longest = cfg.draft.architecture, cfg.runtime.max_seq_len
    limit = facts.max_position_embeddings if facts is not None and cfg.draft.checkpoint is not None else None
    if limit is not None and longest is not None and longest > limit:
        policy = cfg.draft.context_limit.value
        yield "positions", f"the head was made for {limit}, requests may grow to {longest}: {policy}"
