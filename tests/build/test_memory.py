"""Where memory goes, what is kept for workspaces and graphs, and what happens when it runs out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eagle3.build import engine as build
from eagle3.build import pools
from eagle3.build.memory import Memory, free_bytes
from eagle3.build.pools import pool_pages
from eagle3.build.workspace import contexts, generations
from eagle3.config.compose import compose
from eagle3.config.schema import KVConfig
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from eagle3.engine.runner import on
from eagle3.errors import CapacityError
from helpers.pairs import CPU, LAYERS, engine, facts, random_pair, random_target

TREE = DraftShape(depth=3, top_k=2, nodes=7)
KEYS = (
    "kv.free_gpu_memory_fraction",
    "kv.max_tokens",
    "runtime.max_batch_size",
    "runtime.max_num_tokens",
    "runtime.cuda_graph_batch_sizes",
)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "free_bytes", lambda _: 1000)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(("reserved", "pages"), [(0, 22), (1, 22), (500, 11), (100, 20)])
def test_pools_take_their_share_of_the_rest(reserved: int, pages: int) -> None:
    kv = KVConfig(tokens_per_block=4, free_gpu_memory_fraction=0.9)
    assert pool_pages(kv, 10, 10_000, 4, CPU, reserved) == pages
    assert pool_pages(kv, 10, 40, 4, CPU, reserved) == 10, "no more than requests can need"


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("reserved", [900, 1001])
def test_what_is_kept_is_told(reserved: int) -> None:
    with pytest.raises(CapacityError, match=r"kept for workspaces and graphs\), one request at its longest needs 40"):
        pool_pages(KVConfig(tokens_per_block=4), 10, 400, 40, CPU, reserved)


@pytest.mark.usefixtures("memory")
def test_max_tokens_decides() -> None:
    assert pool_pages(KVConfig(tokens_per_block=4, max_tokens=40), 10, 400, 400, CPU, reserved=999) == 10


@pytest.mark.parametrize("joint", [False, True])
def test_the_sum(joint: bool) -> None:
    target, head = random_pair(8)
    served = engine(target, (head, LAYERS), TREE, joint=joint)
    found, rows = Memory.of(served), 64 + 4 * TREE.nodes
    values = {name: sum(p.numel() for p in model.parameters()) for name, model in (("target", target), ("head", head))}
    rope = 2 * 640 * 4
    assert (found.target, found.head) == (8 * (values["target"] + rope), 8 * (values["head"] + rope))
    assert found.capture == rows * 3 * 32 * 8
    assert found.kv_bytes_per_token == 9 * 2 * 2 * 8 * 8
    assert found.kv == (found.kv_entries + 4) * found.kv_bytes_per_token  # and the dummy page
    assert found.kv_entries == sum(p.total * p.page for p in served.scheduler.pools[:1])
    assert found.graphs == 0
    assert f"KV pools, {found.kv_entries} entries of {found.kv_bytes_per_token} bytes" in str(found)


def test_the_sum_without_a_head() -> None:
    found = Memory.of(engine(random_target(facts(8))))
    assert (found.head, found.capture) == (0, 0)
    assert found.kv_bytes_per_token == 8 * 2 * 2 * 8 * 8


@pytest.mark.parametrize("chunk", [None, 5])
@torch.inference_mode()
def test_the_largest_passes_leave_no_trace(chunk: int | None) -> None:
    target, head = random_pair(8)
    served = engine(target, (head, LAYERS), TREE, batch=3, max_seq_len=40, chunk=chunk)
    fresh = engine(target, (head, LAYERS), TREE, batch=3, max_seq_len=40, chunk=chunk)
    worker, limits, preparer = served.runner.worker, served.scheduler.limits, served.runner.preparer
    prompts = contexts(preparer, worker, limits, 2)
    rows = generations(worker, limits, 2, preparer)
    assert prompts.ids.shape == (64 if chunk is None else 15,), "max_num_tokens, or as many as chunks allow"
    assert max(int(m.table.max()) for m in prompts.metas) == 0
    worker.contexts(prompts)
    assert int(worker.generations(rows).counts.sum()) == 0
    worker.slots.restore(prompts.slots)
    for mine, other in zip(worker.slots.tree.tensors(), fresh.runner.worker.slots.tree.tensors(), strict=True):
        assert torch.equal(mine[:-1], other[:-1])
    assert not worker.slots.length[:-1].any()
    assert not worker.slots.has_tree.any()
    asked = [{"max_new_tokens": 10, "temperature": 1.0}] * 3
    want = [r.token_ids for r in fresh.generate([[1], [2, 3], [4, 5, 6]], asked)]
    assert [r.token_ids for r in served.generate([[1], [2, 3], [4, 5, 6]], asked)] == want


def short(*_: object, **__: object) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")


def capture_fails(*_: object, **__: object) -> Any:
    """As memory that runs out while a graph is captured: its end fails too."""
    try:
        short()
    finally:
        raise RuntimeError("capture failed")


def named(error: pytest.ExceptionInfo[CapacityError]) -> bool:
    return all(key in str(error.value) for key in KEYS) and "\n" not in str(error.value)


def short_on_a_cpu(*_: object, **__: object) -> Any:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: can't allocate memory\nmore")


@pytest.mark.parametrize("fails", [short, capture_fails, short_on_a_cpu])
def test_a_run_out_of_memory_names_keys(fails: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    served = engine(random_target(facts(8)))
    with monkeypatch.context() as broken:
        broken.setattr(type(served.runner.worker.target), "logits", fails)
        with pytest.raises(CapacityError) as error:
            served.generate([[1, 2]], [{"max_new_tokens": 2}])
    assert named(error)
    assert len(served.generate([[1, 2]], [{"max_new_tokens": 2}])[0].token_ids) == 2, "the engine goes on"


@pytest.mark.parametrize("part", ["load_parts", "TreeSlots", "Capture", "Scheduler"])
@pytest.mark.parametrize("make", [build.build_engine, build.build_arms])
def test_a_build_out_of_memory_names_keys(
    part: str, make: Callable[..., Engine | dict[str, Engine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = compose(["conf=tiny", "runtime.device=cpu", "runtime.max_seq_len=64", "kv.max_tokens=256"])
    monkeypatch.setattr(build, part, short)
    with pytest.raises(CapacityError) as error:
        make(composed)
    assert named(error)


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="something else"), on(CPU):
        raise RuntimeError("something else")


def test_there_is_memory() -> None:
    assert free_bytes(CPU) > 0
