"""Rules of training a head and of its data: ranges, and what only `train` asks for."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eagle3.config.facts import Facts
from eagle3.config.rules_engine import COLDEST
from eagle3.config.schema import DType, EngineConfig
from eagle3.errors import Problem

_COUNTS = ("steps", "batch_size", "accumulate", "epochs", "log_every", "eval_every", "save_every", "keep", "timeout")
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {  # key -> (whether a value will do, what is wanted)
    "seq_len": (lambda n: n >= 3, "must be at least 3: a token, the one drafted from, the one drafted"),
    "max_steps": (lambda n: n is None or n >= 1, "must be at least 1, or null for all epochs"),
    "step_decay": (lambda x: 0 < x <= 1, "must be above 0 and at most 1"),
    "lr": (lambda x: 0 < x < math.inf, "must be above 0"),
    "warmup": (lambda x: 0 <= x < 1, "is a share of all updates: from 0 to below 1"),
    "weight_decay": (lambda x: 0 <= x < math.inf, "must be at least 0"),
    "clip": (lambda x: 0 < x < math.inf, "must be above 0"),
    "seed": (lambda n: 0 <= n < 2**63, "must be in [0, 2^63)"),
    "dtype": (lambda kind: kind is not DType.float16, "cannot be float16, whose gradients vanish: use bfloat16"),
}
_DATA: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperatures": (
        lambda ts: bool(ts) and ts.count(0) <= 1 and all(t == 0 or COLDEST <= t < math.inf for t in ts),
        f"wants 0 or numbers from {COLDEST} on, 0 at most once: greedy answers are all the same",
    ),
    "max_new_tokens": (lambda n: 1 <= n <= 2**30, "must be in [1, 2^30]"),
    "eval_share": (
        lambda x: 0 < x <= 0.5,
        "must be above 0 and at most 0.5: a head is held against answers that it did not learn from",
    ),
    "seed": (lambda n: 0 <= n < 2**63, "must be in [0, 2^63)"),
    "batch": (lambda n: n is None or 1 <= n <= 2**30, "must be in [1, 2^30], or null for runtime.max_batch_size"),
}


def made_data(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Data has answers of some length at temperatures that differ, and some to hold a head against."""
    for name, (sound, message) in _DATA.items():
        if not sound(value := getattr(cfg.data, name)):
            yield Problem(f"data.{name}", message, value)
    own = (name for name in cfg.data.sets if name.partition(":")[0] == "self")
    if wrong := [name for name in own if not re.fullmatch(r"self:[1-9]\d{0,8}", name)]:
        yield Problem("data.sets", "wants self:COUNT, COUNT at least 1", wrong)


def training(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Counts are positive, rates and shares in their ranges."""
    for name in _COUNTS:
        if not 1 <= (value := getattr(cfg.train, name)) <= 2**20:
            yield Problem(f"train.{name}", "must be at least 1 and at most 2^20", value)
    for name, (sound, message) in _RANGES.items():
        if not sound(value := getattr(cfg.train, name)):
            yield Problem(f"train.{name}", message, value)
    if (folder := cfg.train.features) is not None:
        if not folder:
            yield Problem("train.features", "wants a folder, or null to make features as they are needed", folder)
        elif Path(folder).absolute() in (Path(other).absolute() for other in (cfg.train.data, cfg.train.out) if other):
            yield Problem("train.features", "must be another folder than train.data and train.out", folder)


def trained_vocabulary(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """A head guesses some of the target's tokens."""
    size, most = cfg.train.draft_vocab_size, facts.target.vocab_size if facts.target else math.inf
    if size is not None and not 1 <= size <= most:
        message = f"must be in [1, {'V' if facts.target is None else most}], the target's vocabulary, or null for all"
        yield Problem("train.draft_vocab_size", message, size)


def trained_captures(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """Captured layers are distinct outputs of the target's layers, or -1 for the final norm."""
    ids, layers = cfg.train.layers_to_capture, facts.target.num_hidden_layers if facts.target else math.inf
    if ids is None:
        return
    if not ids or len(set(ids)) < len(ids) or not all(-1 <= i < layers for i in ids):
        most = "L - 1" if facts.target is None else facts.target.num_hidden_layers - 1
        message = f"must be distinct layers in [0, {most}], or -1 for the final norm, at least one"
        yield Problem("train.layers_to_capture", message, ids)


def trainable(cfg: EngineConfig) -> Iterator[Problem]:
    """What a run cannot do without, and what it does not know; asked by `train` alone."""
    train = cfg.train
    if not train.data:
        yield Problem("train.data", "needs a folder of samples: train.data=FOLDER, made by eagle3 data", train.data)
    if not train.out:
        yield Problem("train.out", "needs a folder for the head: train.out=FOLDER", train.out)
    if cfg.runtime.batch_invariant:
        yield Problem("runtime.batch_invariant", "is for serving, training does not know it: leave it out", True)


ERRORS = (made_data, training, trained_vocabulary, trained_captures)
WARNINGS = ()
