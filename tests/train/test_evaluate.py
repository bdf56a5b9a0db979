"""The simulated acceptance is the engine's own, draft by draft."""

import pytest
import torch

from eagle3.config.shape import DraftShape
from eagle3.train.evaluate import evaluate, hits_in_a_row, walk
from eagle3.train.packing import batch_of
from eagle3.train.ranks import Ranks
from eagle3.train.samples import Sample
from eagle3.train.teacher import Teacher
from eagle3.train.ttt import Rule, unroll
from helpers.pairs import CPU, LAYERS, SMALL, engine, near_pair, random_pair

S = 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("pair", ["random", "near"])
def test_simulated_chains_accept_what_the_engine_accepts(pair: str, temperature: float) -> None:
    target, head = random_pair(8) if pair == "random" else near_pair(sharp=0.4)
    layers = LAYERS if pair == "random" else SMALL
    served = engine(target, (head, layers), DraftShape(S, 1, S + 1))
    prompts = [[1, 5, 2, 6], [3], [7, 7, 0, 1, 2, 3, 4]]
    accepted, steps = [0] * 3, [0] * 3
    answers: list[list[int]] = [[], [], []]
    for event in served.stream(prompts, [{"max_new_tokens": 40, "temperature": temperature}] * 3):
        i = int(event.request_id)
        accepted[i] += event.accepted or 0
        steps[i] += event.accepted is not None  # the prompt's own token is no step
        answers[i] += event.token_ids

    samples = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = (*prompt, *answer)
        samples.append(Sample(ids, ((len(prompt), len(ids)),)))
    batch = batch_of([samples], 160, CPU)
    run = hits_in_a_row(batch, unroll(head, batch, Teacher(target, layers, None)(batch), Rule(S, 0.8)).guesses).tolist()
    at, walked = 0, []
    for sample in samples:
        walked.append(walk(run[at : at + len(sample.ids)], sample.answers))
        at += len(sample.ids)

    assert walked == list(zip(accepted, steps, strict=True))
    assert 0 < sum(accepted) < S * sum(steps), "some are accepted, some are not"
    score = evaluate(head, Teacher(target, layers, None), samples, Rule(S, 0.8), Ranks(CPU), length=60, rows=2)
    assert score.tau == pytest.approx(1 + sum(accepted) / sum(steps))
    assert len(score.loss) == len(score.accuracy) == S


def test_walk() -> None:
    # index:  0  1  2  3  4  5  6  7
    run = [9, 2, 0, 0, 1, 9, 9, 9]
    assert walk(run, [(2, 8)]) == (2 + 1, 2), "root 2 accepts two, root 5 one, as the answer ends"
    assert walk(run, [(1, 3), (4, 5)]) == (1, 1), "cut by an answer's end; an answer of one token takes no step"
    assert walk([0, 0, 0], [(0, 3)]) == (0, 1), "the first token of all cannot be drafted for"


def test_hits_in_a_row() -> None:
    batch = batch_of([[Sample((1, 0, 0, 0), ((1, 4),)), Sample((0, 0), ((1, 2),))]], 6, CPU)
    assert batch.asked.tolist() == [0, 1, 2]
    guesses = torch.zeros(3, 3, dtype=torch.int64)
    assert hits_in_a_row(batch, guesses).tolist() == [2, 1, 0, 0, 0, 0], "what lies past the end is no token"
    guesses[1, 1] = 5  # index 0's second
    assert hits_in_a_row(batch, guesses).tolist() == [1, 1, 0, 0, 0, 0]
