"""runtime.batch_invariant: rows of a forward, and answers, whose bits hang on nothing beside them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3.build.engine import build_engine
from eagle3.config.load import compose
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from eagle3.kv.meta import AttnMeta, PromptMeta, TreeMeta
from eagle3.kv.pool import KVPool
from eagle3.models.decoder import Decoder
from eagle3.models.weights import dummy_weights
from eagle3.nn.embedding import Embedding
from eagle3.nn.linear import Linear
from eagle3.ops.slot_rows import entries
from helpers.pairs import CPU, POSITIONS, SMALL, engine, facts, random_head
from helpers.scripted import follow, spoiled
from helpers.trace import preempt_often, serve

VOCAB, LENGTH, PAGE = 128, 33, 8
CHAIN = DraftShape(depth=3, top_k=1, nodes=4)
Span = tuple[int, int, int]  # of a request, its rows from start to end
TYPES = [torch.float32, torch.bfloat16]


def decoder(dtype: torch.dtype, *, steady: bool, **changes: Any) -> Decoder:
    """A target wide enough for a library to choose its products' order of sums by the number of rows."""
    known = facts(VOCAB, hidden=96, layers=4, **changes)
    model = Decoder(known, max_positions=POSITIONS, max_seq_len=POSITIONS, steady=steady, dtype=dtype, device=CPU)
    dummy_weights(model, seed=3, std=0.15)
    return model.requires_grad_(False)


class Forwards:
    """Two sequences in one pool; request 1 is looked at, request 0 keeps it company."""

    def __init__(self, model: Decoder, dtype: torch.dtype) -> None:
        self.model = model
        self.pool = KVPool([(model.kv_layout, dtype)], 13, PAGE, CPU)
        self.table = torch.arange(1, 13, dtype=torch.int32).view(2, 6)
        self.ids = torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))

    def prompt(self, *spans: Span) -> Tensor:
        """Logits [rows, V] of the last of these chunks (request, start, end), run together."""
        lens = [end - start for _, start, end in spans]
        cu_q = torch.tensor([0, *lens]).cumsum(0).to(torch.int32)
        kv_lens = torch.tensor([end for *_, end in spans], dtype=torch.int32)
        table = self.table[[b for b, *_ in spans]]
        return self._logits(spans, lambda write_at: PromptMeta(write_at, cu_q, kv_lens, table, max(lens)))

    def chain(self, *spans: Span) -> Tensor:
        """The same for rows of generations, as many for each."""
        rows = spans[0][2] - spans[0][1]
        kv_lens = torch.tensor([end for *_, end in spans], dtype=torch.int32)
        depth = torch.arange(rows, dtype=torch.int32).expand(len(spans), rows)
        bits = (2 << torch.arange(rows)).sub(1).int().expand(len(spans), rows)[..., None].contiguous()
        table = self.table[[b for b, *_ in spans]]
        mask = bits if rows > 1 else None
        return self._logits(spans, lambda write_at: TreeMeta(write_at, kv_lens, table, rows, depth, mask))

    @torch.inference_mode()
    def _logits(self, spans: tuple[Span, ...], meta: Callable[[Tensor], AttnMeta]) -> Tensor:
        positions = [torch.arange(start, end) for _, start, end in spans]
        ids = torch.cat([self.ids[b, at] for (b, *_), at in zip(spans, positions, strict=True)])
        write_at = torch.cat([
            entries(self.table[b : b + 1], at[None], PAGE)[0] for (b, *_), at in zip(spans, positions, strict=True)
        ])  # fmt: skip
        hidden = self.model(ids, torch.cat(positions), self.pool, meta(write_at))
        return self.model.logits(hidden)[-len(positions[-1]) :]


def ways(model: Decoder, dtype: torch.dtype) -> list[Tensor]:
    """Logits [LENGTH, V] of one sequence: as a prompt in one, cut, one by one, in chains, and beside another."""
    run = Forwards(model, dtype)
    found = [run.prompt((1, 0, LENGTH))]
    found.append(torch.cat([run.prompt((0, i, i + 1), (1, i, i + 1)) for i in range(LENGTH)]))
    found.append(torch.cat([run.prompt((0, 0, 30), (1, i, min(i + 4, LENGTH))) for i in range(0, LENGTH, 4)]))
    found.append(torch.cat([run.chain((1, i, i + 1)) for i in range(LENGTH)]))
    found.append(torch.cat([run.chain((0, 9, 10), (1, i, i + 1)) for i in range(LENGTH)]))
    found.append(torch.cat([run.chain((0, 20, 23), (1, i, i + 3)) for i in range(0, LENGTH, 3)]))
    return found


@pytest.mark.parametrize(("dtype", "tied"), [*((dtype, False) for dtype in TYPES), (torch.float32, True)])
def test_a_row_has_the_same_bits_however_it_is_computed(dtype: torch.dtype, tied: bool) -> None:
    first, *others = ways(decoder(dtype, steady=True, tied=tied), dtype)
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "family",
    [
        {"architecture": "Qwen2ForCausalLM", "windows": (None, 7) * 2},
        {"architecture": "Qwen3ForCausalLM", "head_dim": 20},
        {"architecture": "MistralForCausalLM", "windows": (7,) * 4},
    ],
    ids=lambda family: family["architecture"],
)
def test_so_has_a_row_of_every_family(dtype: torch.dtype, family: dict[str, Any]) -> None:
    model = decoder(dtype, steady=True, **family)
    make = torch.Generator().manual_seed(4)
    for name, value in model.named_parameters():
        if name.endswith("bias") or "attn.q_norm" in name or "attn.k_norm" in name:
            value.add_(0.3 * torch.randn(value.shape, generator=make).to(dtype))
    first, *others = ways(model, dtype)
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)


def test_without_it_bits_depend_on_the_rows_beside() -> None:
    first, *others = ways(decoder(torch.float32, steady=False), torch.float32)
    assert not all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_it_is_the_same_model(dtype: torch.dtype, near: float) -> None:
    steady, plain = (Forwards(decoder(dtype, steady=on), dtype).prompt((1, 0, LENGTH)) for on in (True, False))
    torch.testing.assert_close(steady, plain, rtol=0, atol=near)


PROMPTS = [[(5 * i + 3 * j) % VOCAB for j in range(n)] for i, n in enumerate((1, 9, 17, 4))]
NEW = 24
SAMPLINGS = [{"max_new_tokens": NEW, "seed": 5 + i, "temperature": float(i % 2)} for i in range(len(PROMPTS))]


def drafted(model: Decoder, answers: list[list[int]], **how: int) -> Engine:
    """An engine whose drafter knows the answers, every fourth token of them wrong; slots go by order of arrival."""
    built = engine(model, (random_head(model), SMALL), CHAIN, **how)
    script = torch.zeros(len(PROMPTS) + 1, 64, dtype=torch.int64)
    for slot, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
        known = spoiled([*prompt, *answer], len(prompt), 4, VOCAB)
        script[slot, : len(known)] = torch.tensor(known)
    follow(built, script)
    return built


@pytest.mark.parametrize("preempted", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_chains_say_what_plain_decoding_says(dtype: torch.dtype, preempted: bool) -> None:
    model = decoder(dtype, steady=True)
    alone = [
        engine(model, batch=1, page=16).generate([p], [s])[0].token_ids for p, s in zip(PROMPTS, SAMPLINGS, strict=True)
    ]
    built = drafted(model, alone, page=4, chunk=3)
    if preempted:
        preempt_often(built.scheduler, 7)
    traces = serve(built, PROMPTS, SAMPLINGS)
    assert [t.tokens for t in traces] == alone
    assert sum(n for t in traces for n in t.accepted) > len(PROMPTS) * NEW / 2
    assert (sum(t.preemptions for t in traces) > 0) == preempted


@pytest.mark.parametrize("steady", [False, True])
def test_the_configuration_reaches_the_whole_target_and_no_more(steady: bool) -> None:
    overrides = ["conf=tiny", "runtime.device=cpu", "spec=chain", "spec.max_total_draft_tokens=null"]
    worker = build_engine(compose([*overrides, f"runtime.batch_invariant={steady}"])).runner.worker
    parts = [part for part in worker.target.modules() if isinstance(part, Linear | Embedding)]
    assert worker.target.steady == steady
    assert {part.steady for part in parts} == {steady}
    assert worker.spec is not None
    own = worker.spec.drafter.head.modules()  # type: ignore[attr-defined]
    assert not any(part.steady for part in own if isinstance(part, Linear | Embedding))
