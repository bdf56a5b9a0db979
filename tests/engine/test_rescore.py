"""Teacher forcing passes what the target says, and finds what it does not."""

from dataclasses import replace

import pytest

from eagle3.config.schema import SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine, Result
from eagle3.engine.rescore import Rescore
from eagle3.errors import Eagle3Error
from helpers.pairs import LAYERS, cycle_pair, engine, facts, random_pair, random_target

CHAIN = DraftShape(depth=3, top_k=1, nodes=4)
TREE = DraftShape(depth=3, top_k=2, nodes=7)
SAMPLINGS = {"greedy": {}, "sampled": {"temperature": 1.2, "top_k": 6, "top_p": 0.9, "seed": 2**40 + 3}}
PROMPTS = [[1, 2, 3], [5] * 17, [6]]
LONG = 66  # with its prompt more than the 64 rows of a pass
SHORT = [{"max_new_tokens": 8}] * 3


def served(joint: bool = False) -> Engine:
    target, head = random_pair(8)
    return engine(target, (head, LAYERS), TREE, joint=joint)


def planted(result: Result, place: int, vocab: int = 8) -> Result:
    """The same answer with another token at one place."""
    ids = list(result.token_ids)
    ids[place] = (ids[place] + 1) % vocab
    return replace(result, token_ids=ids)


@pytest.mark.parametrize("joint", [False, True], ids=["separate", "joint"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_targets_own_tokens_pass(sampling: dict[str, object], joint: bool) -> None:
    run = served(joint)
    lengths = (LONG, 9, 1)
    results = run.generate(PROMPTS, [{**sampling, "max_new_tokens": n} for n in lengths])
    assert [run.rescore(r) for r in results] == [Rescore(True)] * 3
    assert [len(r.token_ids) for r in results] == [*lengths]
    assert all(pool.free == pool.total for pool in run.scheduler.pools)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_planted_token_is_found(sampling: dict[str, object]) -> None:
    run = served()
    (result,) = run.generate(PROMPTS[:1], [{**sampling, "max_new_tokens": LONG}])
    for place in (0, 1, 61, 62, LONG - 1):  # row 63 of the first pass predicts token 61 of the answer
        wrong = planted(result, place)
        check = run.rescore(wrong)
        assert (check.ok, check.position) == (False, place)
        assert (check.token, check.target_token) == (wrong.token_ids[place], result.token_ids[place])
        assert check.gap is not None
        assert check.gap > 0
    assert all(pool.free == pool.total for pool in run.scheduler.pools)


def test_the_gap_is_that_of_the_two_best_logits() -> None:
    target, head = cycle_pair(16)  # logits 10 · sqrt(16) for the next token, 0 for all others
    run = engine(target, (head, LAYERS), CHAIN)
    (result,) = run.generate([[3]], [{"max_new_tokens": 5}])
    assert run.rescore(planted(result, 2, 16)).gap == pytest.approx(40, rel=1e-4)


def test_plain_answers_and_other_engines_can_be_judged() -> None:
    target, head = random_pair(8)
    (plain,) = engine(target).generate(PROMPTS[:1], [{"max_new_tokens": 20}])
    assert engine(target).rescore(plain).ok
    assert engine(target, (head, LAYERS), TREE).rescore(plain).ok
    assert not engine(random_target(facts(8), seed=5)).rescore(plain).ok


def test_judging_changes_nothing() -> None:
    run, fresh = served(), served()
    for result in run.generate(PROMPTS, SHORT):
        run.rescore(result)
    again = run.generate(PROMPTS, SHORT)
    assert [r.token_ids for r in again] == [r.token_ids for r in fresh.generate(PROMPTS, SHORT)]


def test_drawn_drafts_are_judged_when_greedy_alone() -> None:
    target, head = random_pair(8)
    spec = SpecConfig(use_rejection_sampling=True, max_draft_len=3)
    run = engine(target, (head, LAYERS), CHAIN, spec=spec)
    sampled, greedy = run.generate(PROMPTS[:2], [{"temperature": 1.0, **SHORT[0]}, SHORT[0]])
    assert run.rescore(sampled) == Rescore(None)
    assert run.rescore(greedy) == Rescore(True)


def test_what_cannot_be_judged_is_an_error() -> None:
    run = served()
    refused = run.generate([[1] * 200])[0]
    with pytest.raises(Eagle3Error, match="refused"):
        run.rescore(refused)
    (done,) = run.generate(PROMPTS[:1], SHORT[:1])
    run.add([1])
    with pytest.raises(Eagle3Error, match="idle"):
        run.rescore(done)


def test_an_answer_without_tokens_passes() -> None:
    run = served()
    run.add([1, 2], request_id="a")
    assert run.rescore(run.abort("a")) == Rescore(True)
