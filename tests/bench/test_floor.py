"""The floor of a step: sums that can be done by hand, and those of a well-known shape."""

from functools import partial

import pytest
import torch

from eagle3.bench.floor import PEAKS, Load, Peak, loads, step_floor
from eagle3.config.schema import Architecture
from eagle3.config.shape import DraftShape
from eagle3.kv.pool import KVPool
from eagle3.models.decoder import Decoder, ModelFacts
from eagle3.models.eagle import EagleHead
from eagle3.models.head_facts import HeadFacts, Lender
from eagle3.spec.capture import Capture
from eagle3.spec.drafter import Drafter
from eagle3.spec.slots import TreeSlots
from eagle3.spec.worker import Speculation, Worker
from helpers.pairs import CPU, PLAIN, SMALL, engine, facts, random_head, random_target

META = torch.device("meta")
BF16 = torch.bfloat16
LLAMA_8B = Architecture(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=8192,
)
HEAD = Architecture(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=1,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    draft_vocab_size=32000,
    max_position_embeddings=2048,
)
H200 = PEAKS["NVIDIA H200"]


def worker(shape: DraftShape) -> Worker:
    """Llama-3.1-8B and its head, without memory."""
    sizes = {"max_positions": 64, "max_seq_len": 64, "dtype": BF16, "device": META}
    target = Decoder(ModelFacts.from_architecture(LLAMA_8B), **sizes)
    pool = KVPool([(target.kv_layout, BF16)], 1, 1, META)
    spec = None
    if shape.depth:
        lender = Lender.of(target)
        head = EagleHead(HeadFacts.from_architecture(HEAD, lender, 3), lender, **sizes)
        drafter = Drafter(head, KVPool([(head.kv_layout, BF16)], 1, 1, META), 0, shape)
        spec = Speculation(Capture((1, 15, 28), 1, 4096, BF16, META), drafter)
    return Worker(target, pool, TreeSlots(1, shape, CPU), shape, spec)


def floor(shape: DraftShape, batch: int) -> float:
    return sum(load.ms(H200) for load in loads(worker(shape), batch, 640))


def test_llama_8b_on_an_h200() -> None:
    tree = DraftShape(depth=6, top_k=10, nodes=60)
    assert floor(PLAIN, 1) == pytest.approx(3.44 + 640 * 32 * 2 * 8 * 128 * 2 / 4.37e9, abs=0.02)
    assert floor(tree, 1) == pytest.approx(4.4, abs=0.2)
    assert floor(tree, 32) > 2 * 60 * 32 * 7.5e9 / 790e9, "the arithmetic of 1920 rows is longer than the reading"


def test_by_hand() -> None:
    target = random_target(facts(16, layers=2))  # hidden 32, MLP 64, 4 heads of 8 over 2
    (load,) = loads(engine(target).runner.worker, batch=3, context=10)
    layer = 32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 64
    weights = 2 * (layer + 2 * 32) + 32 + 16 * 32
    assert load.bytes == 8 * weights + 3 * 10 * 2 * 2 * 16 * 8
    assert load.operations == 2 * 3 * (2 * layer + 16 * 32) + 4 * 3 * 10 * 2 * 32


def test_a_layer_reads_no_more_than_its_window() -> None:
    of = partial(loads, batch=3, context=10)
    full, mixed, all_slide = (
        of(engine(random_target(facts(16, layers=2, windows=windows))).runner.worker)[0]
        for windows in ((), (None, 4), (4, 4))
    )
    assert full.bytes - mixed.bytes == mixed.bytes - all_slide.bytes == 3 * 6 * 2 * 16 * 8
    assert full.operations - mixed.operations == 4 * 3 * 6 * 32


def test_the_projection_before_a_heads_layers_counts() -> None:
    target = random_target(facts(16, layers=4))
    plain, projecting = (
        loads(
            engine(target, (random_head(target, **more), SMALL), DraftShape(depth=2, top_k=1, nodes=3)).runner.worker,
            2,
            10,
        )[-1]
        for more in ({}, {"eh_proj": True})
    )
    layer_in = 32 * (32 + 2 * 16)  # a first layer that reads one vector, not two
    assert projecting.bytes - plain.bytes == 8 * (2 * 32 * 32 - layer_in)


def test_draft_steps() -> None:
    of = partial(loads, batch=2, context=100)
    found = of(worker(DraftShape(depth=3, top_k=4, nodes=13)))
    assert len(found) == 4
    fc = 3 * 4096 * 4096
    assert found[1].bytes - found[2].bytes == 2 * fc
    assert found[2] == found[3]
    assert found[2].bytes == of(worker(DraftShape(depth=3, top_k=1, nodes=4)))[2].bytes, "K costs arithmetic alone"
    assert found[2].operations == 4 * of(worker(DraftShape(depth=3, top_k=1, nodes=4)))[2].operations


def test_the_longer_of_both() -> None:
    assert Load(bytes=10, operations=5).ms(Peak(bytes_s=10, flops=10)) == 1000
    assert Load(bytes=1, operations=50).ms(Peak(bytes_s=10, flops=10)) == 5000


def test_unknown_devices_have_none() -> None:
    assert step_floor(engine(random_target(facts(16))).runner.worker, 1, 10) is None
