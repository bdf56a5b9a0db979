"""The joint law of the first three tokens, over more than 100,000 rows, against an exact sum over all prefixes.

Prefixes of a vocabulary of four are numbered as in a heap: 0 the empty one, 4h + 1 + t is h and then t.
"""

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from eagle3.config.schema import SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.ops.philox import Stream, noise
from eagle3.ops.verify_tree import verify_tree
from eagle3.spec.accept import Verify, accept, draw, reject
from eagle3.spec.batch import Accepted, Draws, Sampling
from eagle3.spec.slots import SlotState
from eagle3.spec.tree import Tree, chain, kary
from helpers.pairs import engine, facts, random_head, random_target
from oracles.dense import target_pass

V, ROWS = 4, 102_400
KNOWN = 21  # prefixes of less than three tokens; what follows longer ones does not matter
CPU = torch.device("cpu")
TARGET = 1.5 * torch.randn(KNOWN + 1, V, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
DRAFT = 1.5 * torch.randn(KNOWN + 1, V, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
MODES = {
    "T 0.6": (0.6, 0, 1.0, 0.0),
    "T 1": (1.0, 0, 1.0, 0.0),
    "T 1.3": (1.3, 0, 1.0, 0.0),
    "top-k": (1.0, 2, 1.0, 0.0),
    "top-p": (1.0, 0, 0.7, 0.0),
    "min-p": (1.0, 0, 1.0, 0.2),
    "all": (1.3, 3, 0.8, 0.1),
}


def filtered(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """Probabilities after the filters, in plain Python; no two logits are equal."""
    weight = [np.exp(x / temperature) for x in logits]
    ranked = sorted(range(V), key=lambda i: -weight[i])
    kept = ranked[:top_k] if top_k else ranked
    total, mass, nucleus = sum(weight[i] for i in kept), 0.0, []
    for i in kept:
        if mass < top_p:
            nucleus.append(i)
        mass += weight[i] / total
    best = weight[ranked[0]]
    kept = [i for i in nucleus if weight[i] >= min_p * best]
    total = sum(weight[i] for i in kept)
    return [weight[i] / total if i in kept else 0.0 for i in range(V)]


def law(logits: Callable[[int], list[float]], mode: tuple[float, int, float, float]) -> np.ndarray:
    """[64], the probability of each three tokens in order."""
    out = []
    for tokens in product(range(V), repeat=3):
        at, p = 0, 1.0
        for token in tokens:
            p *= filtered(logits(at), *mode)[token]
            at = 4 * at + 1 + token
        out.append(p)
    return np.array(out)


def p_value(leaves: Tensor, exact: np.ndarray) -> float:
    """How likely counts of heap indices 21 … 84 are under a law; 0 where the impossible happened."""
    counts = np.bincount(leaves.numpy() - KNOWN, minlength=64)
    if counts[exact < 1e-12].any():
        return 0.0
    possible = exact > 1e-12
    return float(chisquare(counts[possible], exact[possible] / exact[possible].sum() * len(leaves)).pvalue)


def push(at: Tensor, token: Tensor) -> Tensor:
    return torch.where(at < KNOWN, 4 * at + 1 + token, at)


def best_tree(at: Tensor, shape: str) -> Tree:
    """The draft's favourites, as a chain of two or as a binary tree of five nodes."""
    tree = chain(len(at), 3, CPU) if shape == "chain" else kary(5, 2, CPU)
    tree = Tree(*(t.expand(len(at), *t.shape[1:]).clone() for t in tree.tensors()))
    place = {0: at}
    for node in range(1, tree.tokens.shape[1]):
        parent, rank = (node - 1, 0) if shape == "chain" else ((node - 1) // 2, (node - 1) % 2)
        ranked = DRAFT[place[parent].clamp(max=KNOWN)].argsort(-1, descending=True)
        tree.tokens[:, node] = ranked[:, rank]
        place[node] = push(place[parent], ranked[:, rank])
    return tree


def drawn_chain(at: Tensor, seed: Tensor, length: Tensor, mode: tuple[float, int, float, float]) -> tuple[Tree, Tensor]:
    """Two drafts, each drawn from the draft's filtered distribution, and these."""
    tree, probs = chain(len(at), 3, CPU), []
    table = torch.tensor([filtered(row, *mode) for row in DRAFT.tolist()])
    for step in (1, 2):
        q = table[at.clamp(max=KNOWN)]
        race = noise(seed, length + step, Stream.DRAFT, V)
        tree.tokens[:, step] = (q.log() - race.log().neg().log()).argmax(-1)
        probs.append(q)
        at = push(at, tree.tokens[:, step])
    return tree, torch.stack(probs, dim=1)


def leaves(verify: Verify, shape: str, mode: tuple[float, int, float, float]) -> Tensor:
    """Heap indices of the first three tokens of so many requests, decoded in steps of at most three tokens."""
    rows = ROWS
    at, seed = torch.zeros(rows, dtype=torch.int64), torch.arange(rows)
    length = torch.zeros(rows, dtype=torch.int64)
    temperature, top_k, top_p, min_p = mode
    sampling = Sampling(
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        seed,
    )
    for _ in range(3):
        if shape == "drawn":
            tree, probs = drawn_chain(at, seed, length, mode)
        else:
            tree, probs = best_tree(at, shape), None
        place = [at]
        mask = tree.mask[0, :, 0].tolist()
        for node in range(1, len(mask)):
            parent = (mask[node] - (1 << node)).bit_length() - 1
            place.append(push(place[parent], tree.tokens[:, node]))
        logits = TARGET[torch.stack(place, dim=1).clamp(max=KNOWN)].flatten(0, 1)
        state = SlotState(tree, torch.ones(rows, dtype=torch.bool), length, sampling, probs)
        done = verify(logits, state, Draws(greedy=False, filtered=True), 2)
        for i in range(3):
            at = torch.where(i < done.counts, push(at, done.tokens[:, i]), at)
        length = length + done.counts
    assert int(at.min()) >= KNOWN
    return at


def exact(mode: str) -> np.ndarray:
    return law(lambda at: TARGET[at].tolist(), MODES[mode])


ratio_test = partial(reject, to_target=lambda ids: ids)


@pytest.mark.parametrize(("shape", "mode"), [*product(("chain", "drawn"), MODES), ("tree", "T 1"), ("tree", "all")])
def test_three_tokens_have_the_targets_law(shape: str, mode: str) -> None:
    found = leaves(ratio_test if shape == "drawn" else accept, shape, MODES[mode])
    assert p_value(found, exact(mode)) > 1e-4


def top_two(logits: Tensor, state: SlotState, draws: Draws, depth: int) -> Accepted:
    """Wrong: a draft passes that is one of the target's two favourites."""
    tree, nodes = state.tree, depth + 1
    wide = Sampling(*(t.repeat_interleave(nodes) for t in state.sampling.tensors()))
    index = (state.length[:, None] + tree.depth + 1).flatten()
    predicted = draw(logits, wide, index, draws).view(-1, nodes)
    best = logits.view(-1, nodes, V).topk(2).indices[:, :depth]
    passes = (best == tree.tokens[:, 1:, None]).any(-1)
    predicted[:, :depth] = torch.where(passes, tree.tokens[:, 1:], predicted[:, :depth])
    links = tree.first_child, tree.next_sibling
    return Accepted(*verify_tree(tree.tokens, *links, predicted, state.has_tree, depth))


def never_residual(logits: Tensor, state: SlotState, draws: Draws, depth: int) -> Accepted:
    """Wrong: the distributions that drafts were drawn from are taken to be flat."""
    assert state.probs is not None
    flat = SlotState(state.tree, state.has_tree, state.length, state.sampling, torch.full_like(state.probs, 1 / V))
    return ratio_test(logits, flat, draws, depth)


@pytest.mark.parametrize(("rule", "shape"), [(top_two, "chain"), (never_residual, "drawn")])
def test_a_wrong_rule_is_seen(rule: Verify, shape: str) -> None:
    assert p_value(leaves(rule, shape, MODES["T 1"]), exact("T 1")) < 1e-9


@pytest.mark.parametrize("drawn", [False, True], ids=["exact", "rejection"])
def test_the_engine_has_the_targets_law(drawn: bool) -> None:
    target = random_target(facts(V, hidden=8, layers=3, heads=2, kv_heads=1), seed=4)
    head = random_head(target, seed=5)
    spec = SpecConfig(use_rejection_sampling=drawn)
    built = engine(target, (head, (0, 1, 2)), DraftShape(2, 1, 3), batch=256, max_seq_len=8, spec=spec, page=8)
    n, mode = 2048, (1.3, 3, 1.0, 0.0)
    samplings = [{"max_new_tokens": 3, "temperature": 1.3, "top_k": 3, "seed": i} for i in range(n)]
    results = built.generate([[2]] * n, samplings)

    table = {}
    for length in range(3):
        for tokens in product(range(V), repeat=length):
            at = 0
            for t in tokens:
                at = 4 * at + 1 + t
            table[at] = target_pass(target, [2, *tokens])[1][-1].tolist()
    found = []
    for r in results:
        at = 0
        for t in r.token_ids:
            at = 4 * at + 1 + t
        found.append(at)
    assert p_value(torch.tensor(found), law(table.__getitem__, mode)) > 1e-4
