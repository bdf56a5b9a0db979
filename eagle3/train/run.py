"""From a configuration to a trained head."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from eagle3.build.target import Progress, engine_limits, load_target, pick_device, target_facts, torch_dtype
from eagle3.config.load import Composed
from eagle3.config.rules_train import trainable
from eagle3.config.schema import DType, LongSamples, LossMean, SpecConfig, TrainConfig
from eagle3.config.shape import DraftShape
from eagle3.engine.runner import on
from eagle3.errors import ConfigError, Problem
from eagle3.models.decoder import Decoder, ModelFacts
from eagle3.train.data_answers import Tell as DataTell
from eagle3.train.data_run import differences
from eagle3.train.data_target import target_mark
from eagle3.train.features import read_features
from eagle3.train.new_head import captured, new_head
from eagle3.train.ranks import Ranks, ranks
from eagle3.train.resume import claimed
from eagle3.train.samples import Sample, Split, read_meta, read_samples
from eagle3.train.teacher import Teacher
from eagle3.train.trainer import Scored, Summary, Tell, Trainer

log = logging.getLogger(__name__)
# what may differ when a run goes on; how rows are dealt to passes and ranks is told as rows an update
_FREE = {
    "data",
    "out",
    "features",
    "resume",
    "batch_size",
    "accumulate",
    "log_every",
    "eval_every",
    "save_every",
    "keep",
    "timeout",
}
_KEYS = "train.batch_size (raise train.accumulate for it), train.seq_len, train.draft_vocab_size or train.steps"

Bar = Callable[[], AbstractContextManager[DataTell]]


@dataclass(frozen=True)
class Told:
    """A run's end, and what was left out of it."""

    summary: Summary
    samples: int
    skipped: int


def train_head(
    composed: Composed,
    tell: Tell,
    progress: Progress | None = None,
    bar: Bar = lambda: nullcontext(_quiet),
    scored: Scored = lambda *_: None,
) -> Told:
    """Train as a configuration says, or go on with it. `bar` shows how features come to be, where they are kept.

    The first rank tells figures of updates and scores of evaluations as they come.

    Raises ConfigError and other errors of ours for what the user can mend, RunError for a run that broke.
    """
    cfg, train = composed.config, composed.config.train
    folder, facts = ready(composed)
    assert train.data is not None
    mark = target_mark(cfg.target)
    same_target(Path(train.data), mark)
    kept, skipped = fitting(Path(train.data), "train", train, facts)
    held, unheld = fitting(Path(train.data), "eval", train, facts)
    with (
        ExitStack() as stack,
        ranks(pick_device(cfg.runtime.device), train.timeout) as here,
        on(here.device, _KEYS),
    ):
        plain, limits = DraftShape.resolve(SpecConfig()), engine_limits(cfg, facts)
        target = load_target(cfg.target, folder, facts, limits, plain, here.device, progress, steady=False)
        trainer = _trainer(composed, target, kept, held, here)
        if here.first:
            mine = identity(trainer, [kept, held], mark)
            stack.enter_context(claimed(trainer.out, mine, resume=train.resume))
        here.any(False)  # nobody reads a checkpoint before the folder is claimed
        if here.first:
            _announce(trainer, composed, skipped, unheld)
        if train.features is not None:
            known = {**mark, "load_format": cfg.target.load_format.value}
            with bar() as made:
                quiet = made if here.first else _quiet
                read_features(trainer.teacher, [*kept, *held], train, known, here, quiet)
        log.log(logging.INFO if here.first else logging.DEBUG, "memory in MiB: %s", trainer.paper)
        if not here.first:
            tell, scored = lambda _: None, lambda *_: None
        return Told(trainer.run(tell, scored), len(kept), skipped)


def _announce(trainer: Trainer, composed: Composed, skipped: int, unheld: int) -> None:
    """What the run is made of, in the log; `skipped` and `unheld` samples are too long."""
    cfg, train, kept = composed.config, composed.config.train, trainer.samples
    share = sum(len(s.ids) for s in kept) * train.epochs / max(trainer.schedule.updates, 1)
    if other := list(differences(read_meta(Path(str(train.data))), cfg.data)):
        log.warning("train.data is used as it is: %s", "; ".join(other))
    if cfg.draft.checkpoint:
        log.warning("draft.checkpoint=%s: its shape is taken, its weights are not", cfg.draft.checkpoint)
    log.info(
        "%d samples and %d to hold the head against (%d and %d too long), %d updates of %d rows, %.0f %% of them "
        "filled; %d parameters learn",
        len(kept),
        len(trainer.held),
        skipped,
        unheld,
        trainer.updates,
        trainer.rows_an_update,
        100 * share / (trainer.rows_an_update * train.seq_len),
        sum(p.numel() for p in trainer.optimiser.live),
    )


def _quiet(_: str, __: int, ___: int, ____: int) -> None:
    """Tells nobody."""


def ready(composed: Composed) -> tuple[Path | None, ModelFacts]:
    """The target's folder and facts, if a configuration can be trained by; looks at no samples.

    Raises ConfigError, or UnsupportedError for what is not built.
    """
    composed.require_runnable()
    cfg = composed.config
    if problems := list(trainable(cfg)):
        raise ConfigError(problems)
    folder, facts = target_facts(cfg.target)
    if cfg.train.seq_len > (most := engine_limits(cfg, facts).max_seq_len):
        message = f"must not be above runtime.max_seq_len ({most})"
        raise ConfigError([Problem("train.seq_len", message, cfg.train.seq_len)])
    captured(cfg, facts.layers)
    return folder, facts


def _trainer(
    composed: Composed, target: Decoder, kept: Sequence[Sample], held: Sequence[Sample], here: Ranks
) -> Trainer:
    cfg, train = composed.config, composed.config.train
    dtype = target.embed.weight.dtype if train.dtype is DType.auto else torch_dtype(train.dtype, None, here.device)
    if dtype is torch.float16:
        dtype = torch.bfloat16
    new = new_head(cfg, target, kept, dtype)
    assert train.out is not None
    return Trainer(new, Teacher(target, new.layers, new.vocabulary), kept, held, train, here, Path(train.out))


def fitting(folder: Path, split: Split, train: TrainConfig, facts: ModelFacts) -> tuple[list[Sample], int]:
    """The samples of a split that fit a row, and how many do not.

    Raises ConfigError where that must not be, where none is left, or for tokens that the target has not.
    """
    samples = read_samples(folder, split)
    most = max(max(sample.ids, default=0) for sample in samples)
    if most >= facts.vocab:
        message = f"holds token {most} in {split}, the target has {facts.vocab}: made for another target?"
        raise ConfigError([Problem("train.data", message, str(folder))])
    kept = [sample for sample in samples if len(sample.ids) <= train.seq_len]
    longest = max(range(len(samples)), key=lambda i: len(samples[i].ids))
    told = f"sample {longest + 1} of {split} has {len(samples[longest].ids)} tokens"
    if len(kept) < len(samples) and train.long_samples is LongSamples.refuse:
        raise ConfigError([Problem("train.seq_len", f"{told}; train.long_samples=skip leaves such out", train.seq_len)])
    if not kept:
        raise ConfigError([Problem("train.seq_len", f"no sample of {split} fits: {told}", train.seq_len)])
    return kept, len(samples) - len(kept)


def same_target(folder: Path, mark: Mapping[str, Any]) -> None:
    """Hold the target against the one that wrote the samples, where they tell of it.

    Raises ConfigError for another text side; another checkpoint's name is a warning, as folders move.
    """
    wrote = read_meta(folder).get("target")
    if not isinstance(wrote, dict):
        return
    if other := [key for key in ("tokenizer", "vocab_size") if wrote.get(key) != mark[key]]:
        message = f"was written by {wrote.get('checkpoint')}, whose {' and '.join(other)} are not this target's"
        raise ConfigError([Problem("train.data", message, str(folder))])
    if wrote.get("checkpoint") != mark["checkpoint"]:
        log.warning("train.data was written by %s, the target is %s", wrote.get("checkpoint"), mark["checkpoint"])


def settings(train: TrainConfig) -> dict[str, Any]:
    """What a run is asked that makes it this one."""
    # a mean over what counts in a pass depends on how rows are dealt to passes
    free = _FREE - {"batch_size", "accumulate"} if train.mean is LossMean.masked else _FREE
    return {f"train.{key}": value for key, value in _simple(asdict(train)).items() if key not in free}


def identity(trainer: Trainer, splits: Sequence[Sequence[Sample]], mark: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run this one and no other."""
    digest = hashlib.sha256()
    for sample in (s for split in splits for s in split):
        digest.update(repr((sample.ids, sample.answers)).encode())
    return {
        **settings(trainer.train),
        "rows an update": trainer.rows_an_update,
        "samples": digest.hexdigest()[:16],
        "target": dict(mark),
        "head": str(trainer.head.facts),
        "captured layers": list(trainer.new.layers),
        "type of the head": str(trainer.head.dtype),
    }


def _simple(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.value if isinstance(value, Enum) else value for key, value in values.items()}
