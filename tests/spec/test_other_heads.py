"""Heads unlike their target: of another width, and made for shorter sequences than the engine serves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagle3.build.engine import build_engine
from eagle3.config.load import compose
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from eagle3.engine.warmup import warm
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from helpers.cycle_files import V, write_cycle
from helpers.pairs import LAYERS, engine, facts, random_head, random_target
from helpers.trace import assert_at_rest, serve
from oracles.dense import accepted_counts

PROMPTS, NEW = [[1, 2, 3], [5] * 9, [7, 0, 7, 0, 5]], 30


def pair_of_widths(hidden: int) -> tuple[Decoder, EagleHead]:
    """A target of width 32, and a head of another with an embedding of its own, where the oracle looks for it."""
    target = random_target(facts(8))
    head = random_head(target, hidden=hidden, intermediate=24, head_dim=hidden // 4, own_embedding=True)
    assert head.embed is not None
    head.lender = replace(head.lender, embed=head.embed)
    return target, head


@pytest.mark.parametrize("joint", [False, True], ids=["separate", "joint"])
@pytest.mark.parametrize("shape", [DraftShape(3, 1, 4), DraftShape(3, 3, 9)], ids=["chain", "tree"])
@pytest.mark.parametrize("hidden", [16, 48])
def test_a_head_of_another_width(hidden: int, shape: DraftShape, joint: bool) -> None:
    target, head = pair_of_widths(hidden)
    asked = [{"max_new_tokens": NEW, "seed": i, "temperature": float(i % 2)} for i in range(3)]
    plain = serve(engine(target), PROMPTS, [s | {"max_new_tokens": NEW + 4} for s in asked])
    found = serve(engine(target, (head, LAYERS), shape, chunk=4, joint=joint), PROMPTS, asked)
    for prompt, trace, long in zip(PROMPTS, found, plain, strict=True):
        assert trace.tokens == long.tokens[:NEW]
        tokens = [*prompt, *long.tokens]
        assert trace.accepted == accepted_counts(target, head, LAYERS, tokens, len(prompt), NEW, shape)
    assert sum(sum(t.accepted) for t in found) > 0


SHORT, LONG = 16, 100


def built(folder: Path, *overrides: str, **fields: object) -> Engine:
    """The cycle pair from files, with these fields in the head's config."""
    pair = write_cycle(folder)
    file = folder / "head" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return build_engine(compose([*pair, "runtime.device=cpu", "spec=chain", "spec.max_draft_len=3", *overrides]))


def drafting_head(served: Engine) -> EagleHead:
    spec = served.runner.worker.spec
    assert spec is not None
    head = spec.drafter.head
    assert isinstance(head, EagleHead)
    return head


def test_a_head_made_for_shorter_sequences_shortens_nothing(tmp_path: Path) -> None:
    short, long = (built(tmp_path / str(n), max_position_embeddings=n) for n in (SHORT, LONG))
    assert short.scheduler.limits.max_seq_len == LONG, "the engine's, whatever the head was made for"
    cos = drafting_head(short).rope.cos
    assert len(cos) >= short.scheduler.shape.entries(LONG)
    assert torch.equal(cos, drafting_head(long).rope.cos)
    warm(short)
    prompts = [[(3 + i) % V for i in range(n)] for n in (24, 1, 90)]
    found = serve(short, prompts, [{"max_new_tokens": 99}] * 3)
    for prompt, trace in zip(prompts, found, strict=True):
        new = LONG - len(prompt)
        assert trace.tokens == [(prompt[-1] + 1 + i) % V for i in range(min(new, 99))]
        assert set(trace.accepted) == {3}
    assert_at_rest(short)


@pytest.mark.parametrize(("user", "layers"), [([], (0, 2, 5)), (["spec.layers_to_capture=[3,6,7]"], (3, 6, 7))])
def test_the_layers_that_a_head_names_are_captured(tmp_path: Path, user: list[str], layers: tuple[int, ...]) -> None:
    named = {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]}
    served = built(tmp_path, "draft.layer_ids_convention=output", *user, **named)
    assert served.runner.worker.spec is not None
    assert served.runner.worker.spec.capture.layers == layers
