"""The ratio test on drawn chains: equal to exact verification in law, and for greedy requests in every token."""

import pytest
import torch

from eagle3.config.schema import SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.spec.accept import reject
from eagle3.spec.batch import Draws, Sampling
from eagle3.spec.slots import SlotState
from eagle3.spec.tree import chain
from helpers.pairs import SMALL, engine, near_pair
from helpers.slots import held
from helpers.trace import serve

CPU = torch.device("cpu")
RATIO = SpecConfig(use_rejection_sampling=True)


def state_of(drafts: torch.Tensor, q: torch.Tensor) -> SlotState:
    """Chains of one draft each, drawn from `q` [Vd]."""
    rows = len(drafts)
    tree = chain(rows, 2, CPU)
    tree.tokens[:, 1] = drafts
    plain = torch.zeros(rows)
    sampling = Sampling(plain + 1, plain.int(), plain + 1, plain, torch.arange(rows))
    probs = q.expand(rows, 1, -1)
    return SlotState(tree, torch.ones(rows, dtype=torch.bool), torch.full((rows,), 9), sampling, probs)


def test_worked_example() -> None:
    """p = .2 .5 .3 and q = .6 .3 .1: six of ten drafts pass, and the residual is two tokens of equal weight."""
    rows = 60_000
    q, p = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.5, 0.3])
    drafts = torch.multinomial(q, rows, replacement=True, generator=torch.Generator().manual_seed(3))
    logits = p.log().expand(rows * 2, 3)
    done = reject(logits, state_of(drafts, q), Draws(False, False), 1, to_target=lambda ids: ids)
    assert (done.counts == 2).float().mean().item() == pytest.approx(0.6, abs=0.01)
    first = torch.bincount(done.tokens[:, 0], minlength=3) / rows
    assert first.tolist() == pytest.approx(p.tolist(), abs=0.01)
    refused = torch.bincount(done.tokens[done.counts == 1, 0], minlength=3) / (done.counts == 1).sum()
    assert refused.tolist() == pytest.approx([0, 0.5, 0.5], abs=0.015)
    assert torch.equal(done.nodes[:, 0], torch.where(done.counts == 2, 1, -1))


def test_drafts_that_the_target_never_says_are_refused() -> None:
    p = torch.tensor([0.0, 0.4, 0.6]).log()
    drafts = torch.zeros(500, dtype=torch.int64)
    q = torch.tensor([1.0, 0.0, 0.0])
    done = reject(p.expand(1000, 3), state_of(drafts, q), Draws(False, False), 1, to_target=lambda ids: ids)
    assert done.counts.tolist() == [1] * 500
    assert set(done.tokens[:, 0].tolist()) == {1, 2}


@pytest.mark.parametrize("depth", [1, 3])
def test_greedy_requests_are_exact(depth: int) -> None:
    target, head = near_pair()
    prompts = [[1, 2, 3], [9], [4, 4, 4, 4, 4]]
    samplings = [{"max_new_tokens": 14, "temperature": float(i == 1), "seed": i} for i in range(3)]
    shape = DraftShape(depth, 1, depth + 1)
    plain = serve(engine(target, max_seq_len=48), prompts, samplings)
    exact = serve(engine(target, (head, SMALL), shape, max_seq_len=48), prompts, samplings)
    ratio = serve(engine(target, (head, SMALL), shape, max_seq_len=48, spec=RATIO), prompts, samplings)
    for i in (0, 2):
        assert ratio[i].tokens == exact[i].tokens == plain[i].tokens
        assert ratio[i].accepted == exact[i].accepted
    assert sum(exact[0].accepted) > 0


def test_a_sampled_request_is_the_same_beside_others_and_for_its_seed() -> None:
    target, head = near_pair()
    shape = DraftShape(3, 1, 4)
    sampling = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3}

    def run(prompts: list[list[int]], seed: int = 3) -> list[list[int]]:
        built = engine(target, (head, SMALL), shape, max_seq_len=48, spec=RATIO)
        return [t.tokens for t in serve(built, prompts, [sampling | {"seed": seed}] * len(prompts))]

    alone = run([[1, 2]])
    assert run([[1, 2], [5, 6, 7]])[0] == alone[0]
    assert run([[1, 2]], seed=4) != alone


def test_kept_distributions_are_those_the_drafts_were_drawn_from() -> None:
    target, head = near_pair()
    built = engine(target, (head, SMALL), DraftShape(3, 1, 4), batch=2, max_seq_len=48, spec=RATIO)
    built.add([1, 2, 3], temperature=1.0, top_k=4)
    built.step()
    state = held(built.runner.worker.slots, [0])
    assert state.probs is not None
    assert state.probs.sum(-1)[0].tolist() == pytest.approx([1.0] * 3)
    assert (state.probs[0] > 0).sum(-1).tolist() == [4] * 3
    assert (state.probs[0].gather(1, state.tree.tokens[0, 1:, None]) > 0).all()
    built.abort_all()


def test_a_head_that_says_nothing_costs_nothing() -> None:
    target, head = near_pair(2)
    head.fc.weight.fill_(float("nan"))
    spec = SpecConfig(use_rejection_sampling=True)
    built = engine(target, (head, SMALL), DraftShape(3, 1, 4), spec=spec, batch=16)
    samplings = [{"temperature": 1.0, "seed": i, "max_new_tokens": 8} for i in range(16)]
    said = {t for trace in serve(built, [[1, 2, 3]] * 16, samplings) for t in trace.tokens}
    assert len(said) > 3, "the target's own draws, not one token over and over"
