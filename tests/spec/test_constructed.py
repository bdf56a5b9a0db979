"""Pairs whose acceptance is known beforehand, and a drafter that follows a script."""

from collections.abc import Collection

import pytest
import torch

from eagle3.config.shape import DraftShape
from helpers.pairs import LAYERS, SMALL, cycle_pair, engine, facts, random_head, random_pair, random_target
from helpers.scripted import follow, spoiled
from helpers.trace import serve
from oracles.dense import accepted_counts

CHAINS = [DraftShape(depth=D, top_k=1, nodes=D + 1) for D in (1, 3, 7)]
NEW = 30


def cycle_counts(first: int, depth: int, bad: Collection[int]) -> list[int]:
    """Accepted drafts a step of the cycle of 16: a run ends after a token that the head is wrong about."""
    counts, root, emitted = [], first, 1
    while emitted < NEW:
        n = 0
        while n < depth and (root + n) % 16 not in bad:
            n += 1
        counts.append(n)
        root, emitted = (root + n + 1) % 16, emitted + n + 1
    return counts


@pytest.mark.parametrize("shape", CHAINS, ids=lambda s: f"D{s.depth}")
@pytest.mark.parametrize("bad", [(), (3,), (1, 2, 9), tuple(range(16))], ids=["none", "one", "three", "all"])
def test_cycle(shape: DraftShape, bad: tuple[int, ...]) -> None:
    target, head = cycle_pair(16, bad, layers=4)
    prompts = [[5], [0, 1, 2], [14, 15]]
    found = serve(engine(target, (head, SMALL), shape, max_seq_len=64), prompts, [{"max_new_tokens": NEW}] * 3)
    for prompt, trace in zip(prompts, found, strict=True):
        assert trace.tokens == [(prompt[-1] + 1 + i) % 16 for i in range(NEW)]
        assert trace.accepted == cycle_counts(prompt[-1] + 1, shape.depth, bad)


def test_cycle_with_a_tree_is_never_wrong_twice() -> None:
    """Wide enough, a tree has the right token beside the head's first choice, but its own guesses after it."""
    target, head = cycle_pair(16, (3,), layers=4)
    shape = DraftShape(depth=3, top_k=2, nodes=4)
    (trace,) = serve(engine(target, (head, SMALL), shape, max_seq_len=64), [[5]], [{"max_new_tokens": NEW}])
    assert trace.tokens == [(6 + i) % 16 for i in range(NEW)]
    assert max(trace.accepted) == 3


@pytest.mark.parametrize("vocab", [8, 13])
@pytest.mark.parametrize("page", [1, 4, 16])
def test_full_width_accepts_one_draft_every_step(vocab: int, page: int) -> None:
    target, head = random_pair(vocab, hidden=16)
    shape = DraftShape(depth=1, top_k=vocab, nodes=vocab + 1)
    plain = serve(engine(target, max_seq_len=48), [[1, 2, 3], [4]], [{"max_new_tokens": 15}] * 2)
    drafted = engine(target, (head, LAYERS), shape, page=page, max_seq_len=48)
    found = serve(drafted, [[1, 2, 3], [4]], [{"max_new_tokens": 15}] * 2)
    assert [t.tokens for t in found] == [t.tokens for t in plain]
    assert [t.accepted for t in found] == [[1] * 7] * 2


@pytest.mark.parametrize("seed", range(3))
def test_random_pairs_accept_what_the_oracle_says(seed: int) -> None:
    target, head = random_pair(8, seed=10 * seed, hidden=16)
    prompts = [[1, 2, 3], [seed], [7, 0, 7, 0, 5, 5]]
    samplings = [{"max_new_tokens": 16, "seed": i, "temperature": float(i % 2)} for i in range(3)]
    plain = serve(engine(target, max_seq_len=48), prompts, samplings)
    total = 0
    for shape in (CHAINS[1], DraftShape(3, 2, 7), DraftShape(2, 8, 20)):
        cut = [s | {"max_new_tokens": 12} for s in samplings]
        found = serve(engine(target, (head, LAYERS), shape, max_seq_len=48), prompts, cut)
        for prompt, long, trace in zip(prompts, plain, found, strict=True):
            assert trace.tokens == long.tokens[:12]
            tokens = [*prompt, *long.tokens]
            assert trace.accepted == accepted_counts(target, head, LAYERS, tokens, len(prompt), 12, shape)
            total += sum(trace.accepted)
    assert total > 10


def test_a_small_draft_vocabulary_is_mapped() -> None:
    target = random_target(facts(16, hidden=16, layers=4))
    head = random_head(target, draft_vocab=11)
    (plain,) = serve(engine(target, max_seq_len=64), [[1, 2, 3]], [{"max_new_tokens": 20}])
    for shape in (CHAINS[1], DraftShape(3, 4, 13), DraftShape(2, 11, 40)):
        built = engine(target, (head, SMALL), shape, max_seq_len=64)
        (trace,) = serve(built, [[1, 2, 3]], [{"max_new_tokens": 16}])
        assert trace.tokens == plain.tokens[:16]
        tokens = [1, 2, 3, *plain.tokens]
        assert trace.accepted == accepted_counts(target, head, SMALL, tokens, 3, 16, shape)
    assert sum(trace.accepted) > 2


@pytest.mark.parametrize(("depth", "every"), [(3, 2), (3, 4), (3, 5), (4, 100), (2, 1)])
def test_a_script_is_accepted_up_to_its_faults(depth: int, every: int) -> None:
    target, head = random_pair(16, hidden=16)
    shape = DraftShape(depth=depth, top_k=1, nodes=depth + 1)
    sampling = {"max_new_tokens": 20, "temperature": 1.0, "seed": 5}
    (plain,) = serve(engine(target, batch=1), [[1, 2, 3]], [sampling])
    sequence = [1, 2, 3, *plain.tokens] + [0] * 8
    wrong = spoiled(sequence, 3, every, 16)
    built = engine(target, (head, LAYERS), shape, batch=1)
    follow(built, torch.tensor([wrong, wrong]))
    (trace,) = serve(built, [[1, 2, 3]], [sampling])
    assert trace.tokens == plain.tokens

    counts, root = [], 3  # the root's position
    while root - 2 < 20:
        n = 0
        while n < depth and wrong[root + n + 1] == sequence[root + n + 1]:
            n += 1
        counts.append(n)
        root += n + 1
    assert trace.accepted[:-1] == counts[:-1]  # the last step is judged past what plain decoding said
    assert len(trace.accepted) == len(counts)
