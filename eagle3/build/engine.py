"""The parts list: from a composed configuration to a running engine, with explicit constructors."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from eagle3.build.draft import build_head
from eagle3.build.folders import fetched
from eagle3.build.memory import Memory, free_bytes, mib
from eagle3.build.pools import PoolPlan
from eagle3.build.preflight import look_before
from eagle3.build.target import Progress, engine_limits, load_target, pick_device
from eagle3.build.workspace import workspace_bytes
from eagle3.config.load import Composed
from eagle3.config.schema import ContextLimit, EngineConfig, SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.config.sizes import penalised
from eagle3.engine.engine import Engine
from eagle3.engine.graphs import GraphRunner, buckets
from eagle3.engine.prepare import Preparer
from eagle3.engine.prompts import most_rows, prompt_rows
from eagle3.engine.runner import Runner, on
from eagle3.engine.scheduler import Limits, Scheduler
from eagle3.kv.pages import Pages
from eagle3.kv.pool import KVPool
from eagle3.models.decoder import Decoder
from eagle3.models.draft import DraftModel
from eagle3.spec.accept import Verify, accept, limited, reject, synthetic
from eagle3.spec.capture import Capture
from eagle3.spec.drafter import Drafter
from eagle3.spec.drawer import Drawer
from eagle3.spec.slots import TreeSlots
from eagle3.spec.worker import Speculation, Worker
from eagle3.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """What a configuration names, loaded."""

    limits: Limits
    target: Decoder
    draft: tuple[DraftModel, tuple[int, ...]] | None  # a head and the target layers that it reads
    tokenizer: Tokenizer | None
    ends: frozenset[int]
    stop_at: int | None = None  # the position from which nothing is drafted; None: there is none


def build_engine(composed: Composed, progress: Progress | None = None) -> Engine:
    """Load what a configuration names and put it together.

    Raises `UnsupportedError` where it asks for what is not built, `WeightError` where files are not what it says,
    `CapacityError` where memory is too small.
    """
    with on(pick_device(composed.config.runtime.device)):
        engine = assemble(composed.config, composed.shape, load_parts(composed, progress))
    log.info("memory: %s", Memory.of(engine))
    return engine


def build_arms(composed: Composed, progress: Progress | None = None) -> dict[str, Engine]:
    """The engine twice: "plain" without drafting, and "spec" where it drafts.

    Both share weights and pools, so that memory is no arm's advantage; they must not run at the same time.
    """
    cfg = composed.config
    with on(pick_device(cfg.runtime.device)):
        parts = load_parts(composed, progress)
        own = assemble(cfg, composed.shape, parts)
        log.info("memory: %s", Memory.of(own))
        if parts.draft is None:
            return {"plain": own}
        plain = replace(cfg, spec=SpecConfig())
        shape = DraftShape.resolve(plain.spec)
        return {"plain": assemble(plain, shape, replace(parts, draft=None), [own.runner.worker.pool]), "spec": own}


def load_parts(composed: Composed, progress: Progress | None = None) -> Parts:
    """Weights and text side; errors as in `build_engine`."""
    composed.require_runnable()
    cfg, shape = composed.config, composed.shape
    device = pick_device(cfg.runtime.device)
    folders = fetched(cfg)
    found = look_before(composed, folders, device)
    folder, facts = folders.target, found.target
    assert facts is not None
    limits = engine_limits(cfg, facts)
    steady = cfg.runtime.batch_invariant
    target = load_target(cfg.target, folder, facts, limits, shape, device, progress, steady=steady)
    draft = stop_at = None
    if shape.depth > 0:
        head, report = build_head(cfg.draft, folders.head, cfg.spec, target, limits, shape, progress)
        draft = head, report.capture.outputs
        longest = head.facts.rope.max_position_embeddings
        if cfg.draft.context_limit is ContextLimit.stop_drafting and limits.max_seq_len > longest:
            stop_at = longest
        log.info("head captures: %s; %s", report.capture, report.vocabulary)
        log.debug("head\n%s", report)  # hydra.verbose=true shows it
        for line in report.warnings:
            log.warning("%s", line)
    return Parts(limits, target, draft, *found.text, stop_at)


def assemble(cfg: EngineConfig, shape: DraftShape, parts: Parts, pools: list[KVPool] | None = None) -> Engine:
    """An engine of parts that are loaded, over `pools` or new ones."""
    limits, target, draft = parts.limits, parts.target, parts.draft
    weight = target.embed.weight
    device = weight.device
    drawn = draft[0].draft_vocab if draft and draws_drafts(cfg.spec, shape) else None
    slots = TreeSlots(limits.max_batch_size, shape, device, drawn_from=drawn, vocab=target.facts.vocab)
    if penalised(cfg):
        slots.adjust.keep_counts()
    capture = None
    if draft is not None:
        rows = shape.capture_rows(limits.max_num_tokens, limits.max_batch_size, limits.max_seq_len)
        capture = Capture(draft[1], rows, target.facts.hidden, weight.dtype, device)

    def worker_over(pools: list[KVPool]) -> Worker:
        spec = None
        if draft is not None and capture is not None:
            first = target.facts.layers if len(pools) == 1 else 0
            spec = speculation(cfg.spec, shape, capture, draft[0], pools[-1], first, parts.stop_at)
        return Worker(target, pools[0], slots, shape, spec)

    # the pools last: they take a share of the memory that is left
    plan = PoolPlan.of(cfg, limits, shape, target, draft[0] if draft else None)
    pools = pools or plan.build(reserved(cfg, limits, shape, plan, worker_over))
    worker = worker_over(pools)
    preparer = Preparer(pools[0].page, shape.loop, device)
    runner = Runner(worker, preparer)
    if graphs(cfg, device):
        width = shape.pages(limits.max_seq_len, pools[0].page)
        sizes = cfg.runtime.cuda_graph_batch_sizes or buckets(limits.max_batch_size)
        runner = GraphRunner(worker, preparer, sizes, len(pools), width, prompt_rows=prompt_sizes(cfg, limits))
    scheduler = Scheduler(limits, shape, [Pages(pool.pages - 1, pool.page) for pool in pools])
    ends = frozenset(i for i in parts.ends if 0 <= i < target.facts.vocab)  # others are never said
    return Engine(cfg, runner, scheduler, parts.tokenizer, target.facts.vocab, ends)


def graphs(cfg: EngineConfig, device: torch.device) -> bool:
    """Whether passes replay CUDA graphs."""
    return device.type == "cuda" and cfg.runtime.cuda_graph


def prompt_sizes(cfg: EngineConfig, limits: Limits) -> list[int]:
    """Rows of the prompt passes that are captured, none of them larger than a pass can be."""
    most, asked = most_rows(limits), cfg.runtime.cuda_graph_prompt_rows
    return prompt_rows(most) if asked is None else sorted({min(rows, most) for rows in asked})


def reserved(
    cfg: EngineConfig,
    limits: Limits,
    shape: DraftShape,
    plan: PoolPlan,
    worker_over: Callable[[list[KVPool]], Worker],
) -> int:
    """Bytes to keep for workspaces and graphs; 0 where pools leave half of the memory anyway, and on a CPU."""
    roomy = 2 * plan.want_entries * plan.bytes_per_token <= free_bytes(plan.device)
    if plan.device.type != "cuda" or cfg.kv.max_tokens is not None or roomy:
        return 0
    trial = plan.of_pages(1)
    preparer = Preparer(plan.page, shape.loop, plan.device)
    size = workspace_bytes(worker_over(trial), preparer, limits, len(trial), graphs=graphs(cfg, plan.device))
    log.info("memory: %s kept for workspaces and graphs", mib(size))
    return size


def draws_drafts(spec: SpecConfig, shape: DraftShape) -> bool:
    """Whether drafts are drawn and judged by the ratio test: on chains alone, a tree gains nothing from it."""
    return spec.use_rejection_sampling and shape.top_k == 1


def speculation(
    spec: SpecConfig,
    shape: DraftShape,
    capture: Capture,
    head: DraftModel,
    pool: KVPool,
    first_layer: int,
    stop_at: int | None = None,
) -> Speculation:
    """The drafter and the rule of verification that a configuration asks for."""
    verify: Verify = accept
    drafter = Drafter(head, pool, first_layer, shape)
    if draws_drafts(spec, shape):
        verify = partial(reject, to_target=head.to_target)
        drafter = Drawer(head, pool, first_layer, shape)
    if spec.synthetic_acceptance is not None:
        verify = partial(synthetic, mean=spec.synthetic_acceptance)
    if stop_at is not None:
        verify = partial(limited, verify=verify, limit=stop_at)
    return Speculation(capture, drafter, verify)
