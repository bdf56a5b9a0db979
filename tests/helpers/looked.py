"""A pair of written models, and what pre-flight says of it."""

from pathlib import Path

from eagle3.build.folders import at_hand
from eagle3.build.preflight import Preflight, preflight
from eagle3.config.load import Composed
from helpers.changed import changed

PAIR = (
    *("conf=base", "target.checkpoint=./target", "draft=eagle3", "draft.checkpoint=./head"),
    *("spec=chain", "spec.max_draft_len=3"),
    *("runtime.max_seq_len=100", "runtime.max_batch_size=2", "runtime.device=cpu"),
)


def composed(pair: Path, overrides: tuple[str, ...] = PAIR, **values: object) -> Composed:
    """The configuration of the models in the folders `target` and `head` of `pair`, with other values."""
    given: dict[str, object] = {"target__checkpoint": str(pair / "target"), "draft__checkpoint": str(pair / "head")}
    return changed(overrides, **(given | values))


def look(pair: Path, overrides: tuple[str, ...] = PAIR, **values: object) -> Preflight:
    """What their files tell."""
    made = composed(pair, overrides, **values)
    return preflight(made, at_hand(made.config))
