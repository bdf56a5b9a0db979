"""Training-time test against a slow restatement of it: one index, one step, one key at a time, in float64."""

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from eagle3.config.schema import Loss, LossMean
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from eagle3.train import soft_loss
from eagle3.train.attention import BlockAttention, PlainAttention, block_mask
from eagle3.train.packing import Batch, batch_of, pack
from eagle3.train.samples import Sample
from eagle3.train.teacher import Teacher
from eagle3.train.ttt import Rule, unroll
from helpers.pairs import CPU, facts, random_head, random_target

V, Vd, S, L = 12, 10, 4, 14
ONE = Sample((3, 1, 4, 1, 5, 9, 2), ((1, 4), (5, 7)))
TWO = Sample((6, 5, 3, 5), ((0, 4),))
THREE = Sample((8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6), ((3, 11),))
ROWS = [[ONE, TWO], [THREE]]  # three and two places are padding
LAYERS = (0, 1, 2)


def models(**changes: Any) -> tuple[Decoder, EagleHead]:
    target = random_target(facts(V, hidden=16, layers=4))
    head = random_head(target, draft_vocab=Vd, **changes).requires_grad_(True)
    return target, head


def vocabulary(head: EagleHead) -> Tensor:
    return head.to_target(torch.arange(head.draft_vocab))


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean() + eps).sqrt() * weight


def turn(x: Tensor, position: int) -> Tensor:
    """x [n, hd] turned, i with i + hd / 2, theta 10000."""
    half = x.shape[1] // 2
    turned = []
    for i in range(half):
        angle = position * float(torch.tensor(1.0) / 10000.0 ** (torch.tensor(2.0 * i) / (2 * half)))
        c, s = math.cos(angle), math.sin(angle)
        turned.append((x[:, i] * c - x[:, half + i] * s, x[:, half + i] * c + x[:, i] * s))
    return torch.stack([a for a, _ in turned] + [b for _, b in turned], 1)


def said(target: Decoder, ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Features [n, 3H] and logits [n, V] of one document alone, by the target's own modules without a cache."""
    positions = torch.arange(len(ids))
    rotation = target.rope(positions)
    scale = target.facts.head_dim**-0.5

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        hidden_from = positions[:, None] < positions
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden_from, -math.inf).softmax(2), v)

    hidden, residual, kept = target.embed(torch.tensor(ids)), None, []
    for i, layer in enumerate(target.layers):
        hidden, residual = layer(hidden, residual, rotation, core)
        if i in LAYERS:
            kept.append(hidden + residual)
    return torch.cat(kept, 1), target.logits(target.norm(hidden, residual)[0])


class Document:
    """The rules as they are written down, for one document alone; sums over its indices."""

    def __init__(self, target: Decoder, head: EagleHead, sample: Sample) -> None:
        self.head, self.ids, self.n = head, sample.ids, len(sample.ids)
        features, self.logits = said(target, sample.ids)
        self.h = [head.fc.weight @ row for row in features]
        self.w = [float(any(a <= t < b for a, b in sample.answers) and t < self.n - 1) for t in range(self.n)]
        self.keys: list[list[Tensor]] = []  # [step][index]
        self.values: list[list[Tensor]] = []

    def step(self, s: int) -> tuple[Tensor, float, float, float]:
        """Sums of the losses, hits, counted positions and mask w of step s."""
        head, ids = self.head, [*self.ids[s + 1 :], *[0] * (s + 1)]
        layer, known = head.layers[0], vocabulary(head).tolist()
        embed, eps = head.lender.embed.weight, head.facts.eps
        both = [
            torch.cat([norm(embed[ids[t]], layer.embed_norm.weight, eps), norm(self.h[t], layer.attn_norm.weight, eps)])
            for t in range(self.n)
        ]
        n_h, n_kv, hd = head.facts.heads, head.facts.kv_heads, head.facts.head_dim
        heads = [(layer.attn.qkv.weight @ x).view(-1, hd) for x in both]
        self.keys.append([turn(x[n_h : n_h + n_kv], t + s) for t, x in enumerate(heads)])
        self.values.append([x[n_h + n_kv :] for x in heads])
        loss, hits, counted, written = torch.zeros((), dtype=torch.float64), 0.0, 0.0, 0.0
        for t in range(self.n):
            q = turn(heads[t][:n_h], t + s)
            seen = [(0, i) for i in range(t + 1)] + [(j, t) for j in range(1, s + 1)]
            mixed = []
            for n in range(n_h):
                kv = n // (n_h // n_kv)
                scores = torch.stack([q[n] @ self.keys[j][i][kv] / math.sqrt(hd) for j, i in seen])
                weights = scores.exp() / scores.exp().sum()
                mixed.append(sum(w * self.values[j][i][kv] for w, (j, i) in zip(weights, seen, strict=True)))
            a = self.h[t] + layer.attn.o.weight @ torch.cat(mixed)
            gate, up = (layer.mlp.gate_up.weight @ norm(a, layer.mlp_norm.weight, eps)).chunk(2)
            self.h[t] = a + layer.mlp.down.weight @ (gate / (1 + (-gate).exp()) * up)
            w = self.w[t + s] if t + s < self.n else 0.0
            written += w
            if w == 0.0:
                continue
            raw = head.lm_head.weight @ norm(self.h[t], head.norm.weight, eps)
            best = int(self.logits[t + s + 1].argmax())
            if best not in known:
                continue
            wanted = self.logits[t + s + 1][known]
            p = wanted.exp() / wanted.exp().sum()
            loss = loss - (p * (raw - raw.exp().sum().log())).sum()
            hits += float(int(raw.argmax()) == int(p.argmax()))
            counted += 1
        return loss, hits, counted, written


def plain(target: Decoder, head: EagleHead, mean: LossMean, decay: float) -> tuple[list[Tensor], list[float], Tensor]:
    """Losses, accuracies, and the sum whose gradient is wanted."""
    documents = [Document(target, head, sample) for row in ROWS for sample in row]
    losses, accuracies = [], []
    for s in range(S):
        sums = [document.step(s) for document in documents]
        counted = sum(c for _, _, c, _ in sums)
        divisor = len(ROWS) * L if mean is LossMean.all else max(counted, 1)
        losses.append(sum(loss for loss, *_ in sums) / divisor)
        accuracies.append(sum(h for _, h, _, _ in sums) / (sum(w for *_, w in sums) + 1e-6))
    return losses, accuracies, sum(decay**s * loss for s, loss in enumerate(losses))


def packed() -> Batch:
    return batch_of(ROWS, L, CPU)


@pytest.mark.parametrize("mean", LossMean)
def test_losses_accuracies_and_gradients_equal_the_restatement(mean: LossMean) -> None:
    target, head = models()
    losses, accuracies, total = plain(target, head, mean, 0.8)
    names = [name for name, _ in head.named_parameters()]
    wanted = torch.autograd.grad(total, list(head.parameters()))

    done = unroll(head, packed(), Teacher(target, LAYERS, vocabulary(head))(packed()), Rule(S, 0.8, mean=mean))

    assert done.losses.tolist() == pytest.approx([float(x.detach()) for x in losses], abs=1e-9, rel=0)
    assert (done.hits.double() / (done.counted + 1e-6)).tolist() == pytest.approx(accuracies, abs=1e-9)
    assert 0 < float(done.hits.sum()) < float(done.counted.sum())
    got = torch.autograd.grad(done.total(0.8), list(head.parameters()))
    for name, ours, theirs in zip(names, got, wanted, strict=True):
        assert float(theirs.abs().max()) > 1e-4, f"{name} must matter for the test to see it"
        assert float((ours - theirs).abs().max()) < 1e-9, name


def test_kl_is_the_loss_less_the_entropy_and_has_its_gradient() -> None:
    target, head = models()
    labels = Teacher(target, LAYERS, vocabulary(head))(packed())
    ce, kl = (unroll(head, packed(), labels, Rule(S, 0.8, loss)) for loss in (Loss.ce, Loss.kl))
    entropy = -(labels.p * labels.p.log()).sum(1)
    counts = [m for m, t in enumerate(packed().asked.tolist()) if packed().mask[t] and labels.known[m]]
    assert 0 < len(counts) < len(packed().asked)
    assert float((ce.losses - kl.losses)[0]) == pytest.approx(float(sum(entropy[m] for m in counts)) / (2 * L))
    assert bool((kl.losses > 0).all())
    for a, b in zip(*(torch.autograd.grad(x.total(0.8), list(head.parameters())) for x in (ce, kl)), strict=True):
        assert torch.equal(a, b)


def test_finite_differences() -> None:
    target, head = models()
    batch = packed()
    labels = Teacher(target, LAYERS, vocabulary(head))(batch)

    def total() -> Tensor:
        return unroll(head, batch, labels, Rule(S, 0.9)).total(0.9)

    total().backward()
    make = torch.Generator().manual_seed(5)
    step = 1e-5
    for name, value in head.named_parameters():
        at = torch.randn(value.shape, generator=make, dtype=torch.float64)
        with torch.no_grad():
            value += step * at
            high = total()
            value -= 2 * step * at
            low = total()
            value += step * at
        assert value.grad is not None
        assert float(high - low) / (2 * step) == pytest.approx(float((value.grad * at).sum()), rel=1e-6, abs=1e-8), name


def test_rows_and_what_lies_beside_a_document_do_not_matter() -> None:
    target, head = models()
    teacher = Teacher(target, LAYERS, vocabulary(head))

    def losses(rows: list[list[Sample]]) -> Tensor:
        batch = batch_of(rows, L, CPU)
        return unroll(head, batch, teacher(batch), Rule(S, 0.8)).losses.detach() * len(rows)

    together = losses([[ONE, TWO]])
    assert torch.allclose(together, losses([[TWO], [ONE]]), atol=1e-12, rtol=0)
    assert torch.allclose(together, losses([[TWO, ONE], []]), atol=1e-12, rtol=0)
    assert not torch.allclose(together, losses([[replace(ONE, ids=(3, 1, 4, 2, 5, 9, 2)), TWO]]), atol=1e-3)


def test_a_batch_of_padding_learns_nothing() -> None:
    target, head = models()
    batch = batch_of([[], []], L, CPU)
    done = unroll(head, batch, Teacher(target, LAYERS, vocabulary(head))(batch), Rule(S, 0.8))
    assert done.losses.tolist() == done.hits.tolist() == done.counted.tolist() == [0] * S
    assert not any(d.any() for d in torch.autograd.grad(done.total(0.8), list(head.parameters())))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target, head = models()

    def results() -> list[Tensor]:
        done = unroll(head, packed(), Teacher(target, LAYERS, vocabulary(head))(packed()), Rule(S, 0.8))
        return [done.hits, done.losses, *torch.autograd.grad(done.total(0.8), list(head.parameters()))]

    whole = results()
    monkeypatch.setattr(soft_loss, "_CHUNK_ELSEWHERE", 1)
    monkeypatch.setattr(soft_loss, "_FEWEST", 3)
    assert [(part.start, part.stop) for part in soft_loss.chunks_of(8, torch.empty(V, 1))] == [(0, 3), (3, 6), (6, 8)]
    for ours, theirs in zip(results(), whole, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12, rtol=0)


def test_a_frozen_output_head_gets_no_gradient_and_the_rest_the_same() -> None:
    target, head = models()
    batch = packed()
    labels = Teacher(target, LAYERS, vocabulary(head))(batch)
    unroll(head, batch, labels, Rule(S, 0.8)).total(0.8).backward()
    assert head.lm_head is not None
    wanted = head.fc.weight.grad
    head.zero_grad()
    head.lm_head.requires_grad_(False)
    unroll(head, batch, labels, Rule(S, 0.8)).total(0.8).backward()
    assert head.lm_head.weight.grad is None
    assert torch.equal(head.fc.weight.grad, wanted)


@pytest.mark.parametrize("length", [L, 128, 700, 1024])
def test_blocks_are_those_of_the_mask(length: int) -> None:
    make = Random(length)
    sizes = [make.choice([7, 60, 128, 300]) for _ in range(40)]
    filled = [[Sample((1,) * sizes[i], ()) for i in row] for row in pack(range(40), sizes, max(length, 300))]
    batch = batch_of(filled if length > 300 else [[ONE, TWO], []], length, CPU)
    ours = block_mask(batch)
    theirs = create_block_mask(ours.mask_mod, batch.rows, None, length, length, device="cpu")
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for name in ("kv", "full_kv", "q", "full_q"):
        mine, wanted = (getattr(mask, f"{name}_indices") for mask in (ours, theirs))
        assert torch.equal(mine, wanted), name
        assert mine.dtype == wanted.dtype
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    assert ours.seq_lengths == theirs.seq_lengths


@pytest.mark.parametrize("steps", [1, 3])
def test_the_attention_of_a_gpu_is_the_plain_one(steps: int) -> None:
    """FlexAttention runs here without its compiler, forward only."""
    make = torch.Generator().manual_seed(0)
    batch = packed()

    def draw(heads: int) -> Tensor:
        return torch.randn(2 * L, heads, 16, generator=make)

    q, keys, values = draw(4), [draw(2) for _ in range(steps)], [draw(2) for _ in range(steps)]
    with torch.no_grad():
        got = BlockAttention(batch, 0.3, compiled=False)(q, keys, values)
        want = PlainAttention(batch, 0.3)(q, keys, values)
    assert torch.allclose(got, want, atol=1e-6)
