"""Where the files of a configuration's two models are. Nothing heavy is imported."""

from dataclasses import dataclass
from pathlib import Path

from eagle3.config.schema import DecodingType, EngineConfig, LoadFormat, TargetConfig
from eagle3.errors import Problem
from eagle3.models.checkpoint import HUB, PYPI, resolve
from eagle3.models.faults import Faults
from eagle3.models.located import located


@dataclass(frozen=True)
class Folders:
    """None where a model needs no files, or where they are not here."""

    target: Path | None
    head: Path | None
    problems: tuple[Problem, ...] = ()
    absent: tuple[str, ...] = ()  # checkpoints whose files are not here
    warnings: tuple[Problem, ...] = ()  # of those the ones that nobody could fetch


def made_up(target: TargetConfig) -> bool:
    """Whether random weights over facts of the configuration's own need no files."""
    return target.load_format is LoadFormat.dummy and target.architecture is not None


def _wanted(cfg: EngineConfig) -> tuple[str | None, str | None]:
    """The checkpoints that are read."""
    target, draft = cfg.target, cfg.draft
    drafts = cfg.spec.decoding_type is DecodingType.eagle3 and draft.load_format is not LoadFormat.dummy
    return None if made_up(target) else target.checkpoint, draft.checkpoint if drafts else None


def fetched(cfg: EngineConfig) -> Folders:
    """The folders, their files fetched where they are not here; errors as in `resolve`."""
    target, head = _wanted(cfg)
    return Folders(
        None if target is None else resolve(target, revision=cfg.target.revision, sha256=cfg.target.sha256),
        None if head is None else resolve(head, revision=cfg.draft.revision),
    )


def at_hand(cfg: EngineConfig) -> Folders:
    """The folders whose files are here; what is wrong with one is among the problems."""
    target, head = _wanted(cfg)
    of_target, of_head = Faults("target.checkpoint", target), Faults("draft.checkpoint", head)
    places = (
        of_target.attempt(
            lambda: located(target, revision=cfg.target.revision, sha256=cfg.target.sha256) if target else None, None
        ),
        of_head.attempt(lambda: located(head, revision=cfg.draft.revision) if head else None, None),
    )
    keys = ("target.checkpoint", "draft.checkpoint")
    every = zip(keys, (target, head), places, (of_target, of_head), strict=True)
    absent = [(key, name) for key, name, place, faults in every if name and place is None and not faults.seen]
    lost = [
        Problem(key, "no such folder on this machine", name)
        for key, name in absent
        if not (HUB.fullmatch(name) or PYPI.fullmatch(name))
    ]
    problems = (*of_target.problems(), *of_head.problems())
    return Folders(*places, problems, tuple(name for _, name in absent), tuple(lost))
