"""A step waits for nothing: between prepare and commit no value comes back to the host."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from gpu_engines import DEVICE, GPU, moved, padded, served
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from eagle3.config.shape import DraftShape
from eagle3.engine.runner import Runner
from eagle3.spec.worker import Worker
from helpers.asked import ENDS, WANTED
from helpers.matrix import PROMPTS, SAMPLINGS, models
from helpers.pairs import PLAIN, SMALL, engine
from helpers.trace import preempt_often

pytestmark = pytest.mark.gpu
SHAPES = {
    "plain": PLAIN,
    "chain": DraftShape(depth=4, top_k=1, nodes=5),
    "tree": DraftShape(depth=4, top_k=4, nodes=17),
}
aten = torch.ops.aten
SIZED = {aten.nonzero, aten.masked_select, aten.unique_dim, aten.equal, aten.is_nonzero}
INDEXED = {aten.index, aten.index_put, aten.index_put_}
READS = [Tensor.item, Tensor.tolist, Tensor.__int__, Tensor.__float__, Tensor.__bool__, Tensor.__index__]


class NoSizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what on a GPU would wait for a size that hangs on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        by_mask = packet in INDEXED and any(t is not None and t.dtype == torch.bool for t in args[1])
        if packet in SIZED or by_mask:
            raise RuntimeError(f"{func} waits for values")
        return func(*args, **(kwargs or {}))


class NoReads(TorchFunctionMode):
    """Refuses what on a GPU would wait for a value."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise RuntimeError(f"{func} waits for values")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raise RuntimeError where the host would wait for the device."""
    if not GPU:
        with NoSizes(), NoReads():  # type: ignore[no-untyped-call]
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


FAULTS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "int": lambda x: int(x[0]),
    "list": Tensor.tolist,
    "nonzero": torch.nonzero,
    "mask": lambda x: x[x > 1],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_read_is_seen(fault: str) -> None:
    x = torch.arange(4, device=DEVICE)
    with torch.inference_mode(), no_waiting(), pytest.raises(RuntimeError):
        FAULTS[fault](x)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("capture", [True, False] if GPU else [False], ids=lambda on: "graphs" if on else "eager")
@pytest.mark.parametrize("asked", [False, True], ids=["usual", "asked"])
def test_a_step_waits_for_nothing(shape: str, capture: bool, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    target, head = moved(models("near", 2), torch.float32)
    drawn = None if shape == "plain" else (head, SMALL)
    made = engine(target, drawn, SHAPES[shape], batch=5, max_seq_len=32, chunk=7, ends=ENDS if asked else frozenset())
    padded(made, capture=capture)
    preempt_often(made.scheduler, 3)
    samplings = [s | {"logprobs": 2} for s in WANTED] if asked else SAMPLINGS
    before = made.generate(PROMPTS, samplings)  # kernels are compiled, graphs captured
    calls = 0

    def guarded(run: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object) -> object:
            nonlocal calls
            calls += 1
            with no_waiting():
                return run(*args)

        return step

    # the whole of it on a GPU; on a CPU what the host itself prepares cannot be told from the device's tensors
    for owner, name in [(Runner, "run")] if GPU else [(Worker, "contexts"), (Worker, "generations")]:
        monkeypatch.setattr(owner, name, guarded(getattr(owner, name)))
    after = served(made, PROMPTS, samplings)
    assert calls > 10
    assert sum(trace.preemptions for trace in after) > 0
    assert [trace.tokens for trace in after] == [result.token_ids for result in before]
