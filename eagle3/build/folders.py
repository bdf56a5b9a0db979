"""Where the files of a configuration's two models are. Nothing heavy is imported."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from eagle3.config.files import HUB, PYPI
from eagle3.config.schema import DecodingType, EngineConfig, LoadFormat, TargetConfig
from eagle3.errors import Problem
from eagle3.models.checkpoint import WANTED, resolve
from eagle3.models.faults import Faults
from eagle3.models.located import located


@dataclass(frozen=True)
class Folders:
    """None where a model needs no files, or where they are not here."""

    target: Path | None
    head: Path | None
    problems: tuple[Problem, ...] = ()
    absent: tuple[str, ...] = ()  # in words, checkpoints whose files are not here
    warnings: tuple[Problem, ...] = ()  # of those the ones that nobody could fetch

    @property
    def lost(self) -> tuple[Problem, ...]:
        """What no run can go on with, whatever can be fetched."""
        return (*self.problems, *(replace(p, message=f"no such folder; {WANTED}") for p in self.warnings))


def made_up(target: TargetConfig) -> bool:
    """Whether random weights over facts of the configuration's own need no files."""
    return target.load_format is LoadFormat.dummy and target.architecture is not None


def wants_head(cfg: EngineConfig) -> bool:
    """Whether a head is read from files."""
    return _wanted(cfg)[1] is not None


def _wanted(cfg: EngineConfig) -> tuple[str | None, str | None]:
    """The checkpoints that are read."""
    target, draft = cfg.target, cfg.draft
    drafts = cfg.spec.decoding_type is DecodingType.eagle3 and draft.load_format is not LoadFormat.dummy
    return None if made_up(target) else target.checkpoint, draft.checkpoint if drafts else None


def fetched(cfg: EngineConfig) -> Folders:
    """The folders, their files fetched where they are not here; what is wrong with either is among the problems.

    Nothing is fetched for a model while the other is nowhere.
    """
    here = at_hand(cfg)
    if here.lost:
        return replace(here, problems=here.lost, warnings=())
    return _each(cfg, resolve)


def at_hand(cfg: EngineConfig) -> Folders:
    """The folders whose files are here; what is wrong with one is among the problems."""
    found = _each(cfg, located)
    told = {problem.key for problem in found.problems}
    pairs = zip(("target.checkpoint", "draft.checkpoint"), _wanted(cfg), (found.target, found.head), strict=True)
    absent = [(key, name) for key, name, place in pairs if name and place is None and key not in told]
    lost = [
        Problem(key, "no such folder on this machine", name)
        for key, name in absent
        if not (HUB.fullmatch(name) or PYPI.fullmatch(name))
    ]
    return replace(found, absent=tuple(_not_here(name) for _, name in absent), warnings=tuple(lost))


def _not_here(name: str) -> str:
    """Why a checkpoint's files are not judged."""
    taken = "no folder here, so taken for a hub id" if HUB.fullmatch(name) else "no folder here"
    return f"{name}: {'not fetched yet' if PYPI.fullmatch(name) else taken}; its files are not judged"


class _Find(Protocol):
    """`resolve`, or `located`."""

    def __call__(self, checkpoint: str, *, revision: str | None = None, sha256: str | None = None) -> Path | None:
        """The folder of a checkpoint."""


def _each(cfg: EngineConfig, find: _Find) -> Folders:
    """The folders as `find` has them; its errors are among the problems."""
    target, head = _wanted(cfg)
    of_target, of_head = Faults("target.checkpoint", target), Faults("draft.checkpoint", head)
    revision, sha256 = cfg.target.revision, cfg.target.sha256
    return Folders(
        of_target.attempt(lambda: find(target, revision=revision, sha256=sha256) if target else None, None),
        of_head.attempt(lambda: find(head, revision=cfg.draft.revision) if head else None, None),
        (*of_target.problems(), *of_head.problems()),
    )
