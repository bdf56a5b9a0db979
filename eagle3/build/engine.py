"""The parts list: from a composed configuration to a running engine, with explicit constructors."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3.build.memory import pool_pages
from eagle3.config.load import Composed
from eagle3.config.schema import Architecture, DType, LoadFormat, TargetConfig
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from eagle3.engine.prepare import Preparer
from eagle3.engine.runner import Runner
from eagle3.engine.scheduler import Limits, Scheduler
from eagle3.errors import ConfigError, Problem, UnsupportedError, WeightError
from eagle3.kv.pages import Pages
from eagle3.kv.pool import KVPool
from eagle3.models.checkpoint import resolve
from eagle3.models.decoder import Decoder, ModelFacts
from eagle3.models.weights import dummy_weights, load_weights
from eagle3.spec.slots import TreeSlots
from eagle3.spec.worker import Worker
from eagle3.text.tokenizer import Tokenizer, end_token_ids

Progress = Callable[[int, int], None]  # tensors loaded, tensors in all


@dataclass(frozen=True)
class Target:
    """A loaded target and what came with it."""

    model: Decoder
    tokenizer: Tokenizer | None
    end_ids: frozenset[int]


def build_engine(composed: Composed, progress: Progress | None = None) -> Engine:
    """Load what a configuration names and put it together.

    Raises `UnsupportedError` where it asks for what is not built, `WeightError` where files are not what it says,
    `CapacityError` where memory is too small.
    """
    if composed.not_runnable:
        raise UnsupportedError("not runnable yet: " + "; ".join(composed.not_runnable))
    cfg, shape = composed.config, composed.shape
    device = pick_device(cfg.runtime.device)
    folder, facts = target_facts(cfg.target)
    limits = Limits(
        max_batch_size=cfg.runtime.max_batch_size,
        max_seq_len=cfg.runtime.max_seq_len or facts.max_positions,
        max_num_tokens=cfg.runtime.max_num_tokens,
        prompt_chunk=cfg.runtime.prompt_chunk or cfg.runtime.max_num_tokens,
    )
    target = load_target(cfg.target, folder, facts, limits, shape, device, progress)
    pool, pages = build_pool(composed, limits, target.model, device)
    worker = Worker(target.model, pool, TreeSlots(limits.max_batch_size, shape, device), shape)
    return Engine(
        cfg,
        Runner(worker, Preparer(pool.page, device)),
        Scheduler(limits, shape, [pages]),
        target.tokenizer,
        facts.vocab,
        target.end_ids,
    )
