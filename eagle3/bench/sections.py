"""What a generation step is split into, and marks on its way, set from outside: no code of a step knows of them."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median

import torch

from eagle3.models.decoder import Decoder, Layer
from eagle3.nn.linear import Linear
from eagle3.spec.drafter import Drafter
from eagle3.spec.worker import Worker


class Section(StrEnum):
    """Parts of a step in their order; what comes before the first and after the last is the host's gap."""

    READ = "read"  # the slots' rows, and the tree as rows of a forward
    ATTENTION = "target attention"  # rope and K/V store included
    LINEAR = "target linear"  # logits included
    OTHER = "target other"  # embedding, norms, activation, capture
    VERIFY = "verify"
    MOVE = "move"  # accepted K/V, and the rows of the accepted path
    DRAFT = "draft"
    BUILD = "build"  # the tree, of all candidates
    WRITE = "write"  # the slots


Stamp = torch.cuda.Event | float


def stamp(device: torch.device) -> Stamp:
    """Now: on a GPU as its stream gets there, and again at every replay of a graph that is being captured."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def elapsed_ms(start: Stamp, end: Stamp) -> float:
    """Milliseconds between two moments of the same device; on a GPU both must have passed."""
    if isinstance(start, float) or isinstance(end, float):
        assert isinstance(start, float)
        assert isinstance(end, float)
        return 1000 * (end - start)
    return float(start.elapsed_time(end))


class Marks:
    """The sections of the newest step that ran or was captured, each with the moment it began."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._laps: list[tuple[Section | None, Stamp]] = []
        self._running = False

    def begin(self) -> None:
        """A step begins; the marks of the one before are forgotten."""
        self._laps, self._running = [], True
        self.enter(Section.READ)

    def enter(self, section: Section) -> None:
        """From here on it is `section`'s time. Outside a step, in a prompt's pass, nothing happens."""
        if self._running and (not self._laps or self._laps[-1][0] is not section):
            self._mark(section)

    def end(self) -> None:
        """The step ends."""
        self._mark(None)
        self._running = False

    def sections(self) -> dict[Section, float]:
        """Milliseconds by section; all marks must have passed."""
        spent: dict[Section, float] = {}
        for (section, start), (_, end) in pairwise(self._laps):
            assert section is not None
            spent[section] = spent.get(section, 0.0) + elapsed_ms(start, end)
        return spent

    def _mark(self, section: Section | None) -> None:
        if self.device.type == "cuda":
            if self._laps:
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
            if section is not None:
                torch.cuda.nvtx.range_push(section.value)  # type: ignore[no-untyped-call]
        self._laps.append((section, stamp(self.device)))


@dataclass(frozen=True)
class Profile:
    """A step in parts: medians in milliseconds over steps in which all requests generate."""

    steps: int
    sections: dict[Section, float]
    total_ms: float  # of the marked step, on the device's own clock; marks cost time
    gap_ms: float | None  # between one step's end on the device and the next one's start, without marks

    @classmethod
    def of(cls, steps: Sequence[dict[Section, float]], gap_ms: float | None) -> "Profile":
        """From each step's milliseconds by section, at least one step."""
        seen = [section for section in Section if any(section in step for step in steps)]
        sections = {section: median(step.get(section, 0.0) for step in steps) for section in seen}
        return cls(len(steps), sections, median(sum(step.values()) for step in steps), gap_ms)


def around(
    owner: object, name: str, before: Callable[..., object], after: Callable[..., object], undo: ExitStack
) -> None:
    """Put a method between two calls with its arguments, for this object alone and until `undo` closes."""
    call, own = getattr(owner, name), name in vars(owner)

    def wrapped(*args: object, **kwargs: object) -> object:
        before(*args, **kwargs)
        out = call(*args, **kwargs)
        after(*args, **kwargs)
        return out

    object.__setattr__(owner, name, wrapped)  # past frozen dataclasses
    if own:
        undo.callback(object.__setattr__, owner, name, call)
    else:
        undo.callback(object.__delattr__, owner, name)


def mark(worker: Worker, device: torch.device, undo: ExitStack) -> Marks:
    """Mark the generation steps of a worker until `undo` closes.

    Plain decoding has no move, and its choice of tokens up to the slots' write counts as verify.
    """
    marks = Marks(device)

    def enter(section: Section) -> Callable[..., None]:
        return lambda *_, **__: marks.enter(section)

    around(worker, "generations", lambda *_: marks.begin(), lambda *_: marks.end(), undo)
    around(worker.slots, "write", enter(Section.WRITE), enter(Section.WRITE), undo)
    _mark_target(worker.target, enter, undo)
    if worker.spec is not None:
        drafter = worker.spec.drafter
        around(worker.spec, "verify", enter(Section.VERIFY), enter(Section.MOVE), undo)
        around(drafter, "draft", enter(Section.DRAFT), enter(Section.WRITE), undo)
        if isinstance(drafter, Drafter):
            for build in ("_tree", "_chained"):
                around(drafter, build, enter(Section.BUILD), enter(Section.WRITE), undo)
    return marks


def _mark_target(target: Decoder, enter: Callable[[Section], Callable[..., None]], undo: ExitStack) -> None:
    undo.callback(target.register_forward_pre_hook(enter(Section.OTHER)).remove)
    around(target, "logits", enter(Section.LINEAR), enter(Section.VERIFY), undo)
    for layer in target.layers:
        assert isinstance(layer, Layer)
        for module in layer.modules():
            if isinstance(module, Linear):
                after = Section.ATTENTION if module is layer.attn.qkv else Section.OTHER
                undo.callback(module.register_forward_pre_hook(enter(Section.LINEAR)).remove)
                undo.callback(module.register_forward_hook(enter(after)).remove)
