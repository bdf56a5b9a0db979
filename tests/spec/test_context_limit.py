"""draft.context_limit=stop_drafting: a request that outgrows its head is decoded plainly, and says the same."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eagle3.build.engine import build_engine
from eagle3.config.load import compose
from eagle3.config.schema import SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.spec.accept import accept, limited
from helpers.cycle_files import write_cycle
from helpers.pairs import SMALL, engine, near_pair
from helpers.trace import Trace, serve

LIMIT, NEW = 14, 16
CHAIN, TREE = DraftShape(depth=3, top_k=1, nodes=4), DraftShape(depth=3, top_k=2, nodes=7)
PROMPTS = [[3, 4, 5], [7] * 6, [(2 + i) % 16 for i in range(15)]]
SAMPLED: list[dict[str, Any]] = [
    {"max_new_tokens": NEW, "seed": 1},
    {"max_new_tokens": NEW, "seed": 2, "temperature": 1.0},
    {"max_new_tokens": NEW, "seed": 3},
]
PAIR = near_pair()


def inside(prompt: Sequence[int], trace: Trace) -> list[bool]:
    """For each step, whether all of its tree stood below the limit: the root stands after all that is committed."""
    roots = [len(prompt)]
    for count in trace.accepted[:-1]:
        roots.append(roots[-1] + count + 1)
    return [root + CHAIN.depth < LIMIT for root in roots]


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_nothing_is_accepted_past_the_limit(shape: DraftShape) -> None:
    target, head = PAIR
    plain = serve(engine(target), PROMPTS, SAMPLED)
    extended = serve(engine(target, (head, SMALL), shape), PROMPTS, SAMPLED)
    stopped = serve(engine(target, (head, SMALL), shape, stop_at=LIMIT), PROMPTS, SAMPLED)
    for prompt, want, on, got in zip(PROMPTS, plain, extended, stopped, strict=True):
        assert got.tokens == on.tokens == want.tokens
        below = inside(prompt, got)
        first = below.count(True)
        assert below == [True] * first + [False] * (len(below) - first)
        assert got.accepted[:first] == on.accepted[:first]
        assert got.accepted[first:] == [0] * (len(below) - first)
        assert first < len(below)
    assert sum(stopped[0].accepted) > 0, "below the limit as ever"
    assert sum(extended[2].accepted) > 0, "a prompt beyond the limit, of which extend takes drafts"


@pytest.mark.parametrize("spec", [SpecConfig(use_rejection_sampling=True), SpecConfig(synthetic_acceptance=3)])
def test_drawn_drafts_and_forced_lengths_stop_too(spec: SpecConfig) -> None:
    target, head = PAIR
    found = serve(engine(target, (head, SMALL), CHAIN, spec=spec, stop_at=LIMIT), PROMPTS, SAMPLED)
    for prompt, trace in zip(PROMPTS, found, strict=True):
        below = inside(prompt, trace)
        assert [a for a, b in zip(trace.accepted, below, strict=True) if not b] == [0] * below.count(False)
        assert False in below
    assert sum(found[0].accepted) > 0
    if spec.use_rejection_sampling:
        assert found[0].tokens == serve(engine(target), PROMPTS[:1], SAMPLED[:1])[0].tokens, "greedy rows are exact"


@pytest.mark.parametrize("policy", ["extend", "stop_drafting"])
def test_the_limit_is_the_heads(policy: str, tmp_path: Path) -> None:
    pair = write_cycle(tmp_path)
    file = tmp_path / "head" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": LIMIT}))
    words = ("runtime.device=cpu", "spec=chain", "spec.max_draft_len=3", f"draft.context_limit={policy}")
    served = build_engine(compose([*pair, *words]))
    assert served.runner.worker.spec is not None
    verify = served.runner.worker.spec.verify
    if policy == "extend":
        assert verify is accept
    else:
        assert isinstance(verify, partial)
        assert (verify.func, verify.keywords) == (limited, {"verify": accept, "limit": LIMIT})
