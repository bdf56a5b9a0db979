"""The sum on paper against what autograd really keeps."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest

from eagle3.config.load import compose
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from eagle3.models.head_facts import Lender
from eagle3.models.weights import dummy_weights
from eagle3.ops.own_keys import own_keys_triton
from eagle3.train import attention, ttt
from eagle3.train.attention import BlockAttention, StepCore
from eagle3.train.memory import Paper, Work, activations, on_paper
from eagle3.train.packing import Batch, batch_of
from eagle3.train.run import train_head
from eagle3.train.samples import Sample
from eagle3.train.teacher import Teacher
from eagle3.train.ttt import Rule, unroll
from helpers.pairs import CPU, facts, head_facts
from helpers.trained import write_near

ROWS, LENGTH, V, Vd = 2, 64, 64, 40
LAYERS = (0, 1, 2)
INTERPRETED = not torch.cuda.is_available()  # the kernel of own keys then takes a CPU's tensors


def models(dtype: torch.dtype, layers: int) -> tuple[Decoder, EagleHead]:
    sizes: dict[str, Any] = {"max_positions": 128, "max_seq_len": 128, "dtype": dtype, "device": CPU}
    target = Decoder(facts(V, hidden=48, layers=3, kv_heads=2), **sizes)
    known = replace(head_facts(target.facts, draft_vocab=Vd), mapped=False, layers=layers)
    head = EagleHead(known, Lender.of(target), **sizes)
    for model in (target.requires_grad_(False), head):
        dummy_weights(model, 0, std=0.1)
    return target, head.requires_grad_(True)


def batch() -> Batch:
    return batch_of([[Sample(tuple(range(LENGTH)), ((5, LENGTH),))]] * ROWS, LENGTH, CPU)


class Flex(torch.autograd.Function):
    """Stands in for FlexAttention, which has no way back on a CPU: keeps what it keeps."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
        out, lse = torch.empty_like(q), q.new_zeros(q.shape[:3], dtype=torch.float32)
        out.copy_(q)
        ctx.save_for_backward(q, k, v, out, lse, torch.zeros_like(lse))
        return out, lse * 0.7

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise AssertionError


def kept_bytes(target: Decoder, head: EagleHead, steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of all tensors that an unrolled head keeps alive for the way back, its cores' keys and values too."""
    work, cores = batch(), []
    labels = Teacher(target, LAYERS, torch.arange(Vd))(work)
    others = [*head.parameters(), *target.parameters(), labels.captured, labels.p, labels.best, labels.known, work.ids]
    known = {t.untyped_storage().data_ptr() for t in others}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        at = tensor.untyped_storage().data_ptr()
        if at not in known:
            kept[at] = tensor
        return tensor

    class Core(StepCore):
        def __init__(self, attend: Any) -> None:
            super().__init__(attend)
            cores.append(self)

    monkeypatch.setattr(ttt, "StepCore", Core)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = unroll(head, work, labels, Rule(steps, 0.8)).total(0.8)
    assert loss.requires_grad
    for core in cores:
        for tensor in (*core.keys, *core.values):
            keep(tensor)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("blocks", "steps", "layers"),  # kernels in the interpreter take their time: two steps show what each one keeps
    [(False, 1, 1), (False, 4, 1), (False, 3, 2), (True, 1, 1), *[(True, 2, 1)] * INTERPRETED],
)
def test_activations_are_what_autograd_keeps(
    dtype: torch.dtype, steps: int, layers: int, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, head = models(dtype, layers)
    if blocks:

        class Blocks(BlockAttention):
            def __init__(self, work: Batch, scale: float) -> None:
                super().__init__(work, scale, compiled=False)
                self.flex = flex

        def flex(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Any:
            assert how["return_aux"] == AuxRequest(lse=True)
            out, lse = Flex.apply(q, k, v)  # type: ignore[no-untyped-call]
            return out, AuxRequest(lse=lse)

        monkeypatch.setattr(ttt, "attend_of", Blocks)
        monkeypatch.setattr(attention, "own_keys", own_keys_triton)
    real = kept_bytes(target, head, steps, monkeypatch)
    paper = activations(head.facts, Work(ROWS, LENGTH, steps, ROWS), dtype, dtype, blocks=blocks)
    assert real > 2**18
    # of 16 bits the first features are counted, which the first step lets go
    assert real - 64 <= paper + 2**9 <= real * (1.02 if dtype is torch.float32 else 1.10)


def test_a_frozen_output_head_keeps_no_gradient_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    target, head = models(torch.float32, 1)
    assert head.lm_head is not None
    head.lm_head.requires_grad_(False)
    work = Work(ROWS, LENGTH, 4, ROWS)
    real = kept_bytes(target, head, 4, monkeypatch)
    both = [activations(head.facts, work, head.dtype, head.dtype, blocks=False, rows_learn=x) for x in (False, True)]
    assert both[1] - both[0] == 4 * Vd * head.hidden * 4
    assert both[0] == pytest.approx(real, rel=0.02)


def test_parts_are_what_tensors_take() -> None:
    target, head = models(torch.bfloat16, 1)
    teacher = Teacher(target, LAYERS, torch.arange(Vd))
    labels = teacher(batch())
    work = Work(ROWS, LENGTH, 4, ROWS)
    parts = on_paper(teacher, head, work).parts
    learning = sum(p.numel() for p in head.parameters())
    assert parts["masters"] == 4 * learning
    assert parts["gradients"] == (2 + 4) * learning
    assert parts["moments"] == 8 * learning
    assert parts["head"] - 2 * learning == sum(b.nbytes for b in head.buffers())
    assert parts["features"] == labels.captured.nbytes
    assert parts["labels"] == teacher._p.untyped_storage().nbytes()  # type: ignore[union-attr]
    pages, _ = teacher._meta(batch().lengths, CPU)
    page = 16 * target.kv_layout.width * 2  # bytes
    assert 0 <= parts["pages"] - pages * page <= ROWS * page
    assert parts["target logits"] == ROWS * LENGTH * (V + Vd) * 2
    assert on_paper(teacher, head, replace(work, ranks=2)).parts["gradients"] == (2 + 4 + 4) * learning


def test_the_sum_takes_the_larger_of_two_moments() -> None:
    parts = {"target": 5, "pass": 7, "target logits": 2, "activations": 4, "head logits": 1}
    assert Paper(parts).sum == 5 + 9
    assert Paper(parts | {"activations": 20}).sum == 5 + 21


def test_a_run_says_what_it_takes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    near = write_near(tmp_path, count=6, new=8)
    with caplog.at_level(logging.INFO):
        done = train_head(compose([*near, "train.max_steps=1"]), lambda _: None)
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("memory in MiB: ")]
    told = done.summary.memory.told()
    assert line.endswith(f"at most {told['sum'] / 2**20:.0f} MiB at once")
    assert told["peak"] is None, "a CPU does not count"
    last = json.loads((tmp_path / "head" / "log.jsonl").read_text().splitlines()[-1])
    assert last == {"kind": "memory", "update": 1, **told}
