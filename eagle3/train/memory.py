"""What training takes of its device's memory, on paper: from shapes alone, before anything has run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from eagle3.models.head_facts import HeadFacts
from eagle3.train.soft_loss import chunks_of
from eagle3.train.teacher import SCRATCH_PAGE, Teacher

_MOMENTS = 2  # of AdamW
_PASS = "pass"
_TARGET_LOGITS = "target logits"
_ACTIVATIONS = "activations"
_HEAD_LOGITS = "head logits"


@dataclass(frozen=True)
class Paper:
    """Bytes by what they are for."""

    parts: dict[str, int]

    @property
    def sum(self) -> int:
        """The most at once: the target's pass and its logits are gone when the head's steps begin."""
        first = self.parts[_PASS] + self.parts[_TARGET_LOGITS]
        second = self.parts[_ACTIVATIONS] + self.parts[_HEAD_LOGITS]
        return sum(self.parts.values()) - min(first, second)

    def __str__(self) -> str:
        told = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in self.parts.items() if size)
        return f"{told}; at most {self.sum / 2**20:.0f} MiB at once"


class Memory:
    """The sum on paper, and what a device shows beside it from now on."""

    def __init__(self, paper: Paper, device: torch.device) -> None:
        self.paper, self.device = paper, device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @property
    def peak(self) -> int | None:
        """The most bytes in tensors so far; None: the device does not count them."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    def told(self) -> dict[str, Any]:
        """For JSON."""
        return {"parts": self.paper.parts, "sum": self.paper.sum, "peak": self.peak}


@dataclass(frozen=True)
class Work:
    """What a pass is made of."""

    rows: int  # B
    length: int  # L; T = B · L
    steps: int  # S
    documents: int  # most of them in a pass, paddings included
    ranks: int = 1

    @property
    def tokens(self) -> int:
        """T."""
        return self.rows * self.length


def on_paper(teacher: Teacher, head: EagleHead, work: Work) -> Paper:
    """The sum for a teacher and a head on the device where they are.

    b, t and w are the bytes of a value of the head, of the target, and of sums (4 at least); P parameters learn:

        target, head     their weights and tables
        masters          4 · P, where b < 4
        gradients        b · P, and w · P more in the masters' type where b < 4; w · P more where ranks add them up
        moments          2 · w · P
        features         t · T · C · H; read from disk t · T · (C + 1) · H
        labels           w · T · Vd
        pages            t · 2 · n_kv · hd · (T + 16 for each document and 16 more); none where features are read
        pass             `pass_bytes`, none where features are read
        target logits    t · R · (V + Vd), R rows a chunk, without Vd where there is no draft vocabulary
        activations      `activations`
        head logits      b · R · Vd for R rows a chunk, and 2 · w · Vd · H, in which the rows' gradient is summed
    """
    target, facts, tokens = teacher.target, head.facts, work.tokens
    kind, dtype = target.embed.weight.dtype, head.dtype
    stored, captured = teacher.stored is not None, len(teacher.layers)
    learning = sum(p.numel() for p in head.parameters() if p.requires_grad)
    narrow, wide = dtype.itemsize < 4, _wide(dtype)
    assert head.lm_head is not None
    rows = head.lm_head.weight
    vocab, own = target.facts.vocab, 0 if teacher.vocabulary is None else facts.draft_vocab
    entries = (-(-tokens // SCRATCH_PAGE) + work.documents + 1) * SCRATCH_PAGE
    layout = target.kv_layout
    summed = 2 * wide * facts.draft_vocab * facts.hidden if rows.requires_grad else 0
    parts = {
        "target": _module(target),
        "head": _module(head),
        "masters": wide * learning * narrow,
        "gradients": learning * (dtype.itemsize + wide * narrow + wide * (work.ranks > 1)),
        "moments": _MOMENTS * wide * learning,
        "features": kind.itemsize * tokens * (captured + stored) * target.facts.hidden,
        "labels": _wide(kind) * tokens * facts.draft_vocab,
        "pages": 0 if stored else kind.itemsize * entries * layout.width,
        _PASS: 0 if stored else tokens * pass_bytes(target, kind),
        _TARGET_LOGITS: _chunk(tokens, target.embed.weight) * (vocab + own) * kind.itemsize,
        _ACTIVATIONS: activations(facts, work, dtype, kind, blocks=rows.is_cuda, rows_learn=rows.requires_grad),
        _HEAD_LOGITS: _chunk(tokens, rows) * facts.draft_vocab * dtype.itemsize + summed,
    }
    return Paper(parts)


def pass_bytes(target: Decoder, kind: torch.dtype) -> int:
    """A token's share of the target's own pass where it is largest.

    In the MLP 5 H stand beside 3 I (gate and up, then their product), in attention beside the projected heads, the
    turned queries and the result; cosines and sines all along.
    """
    facts = target.facts
    heads = (3 * facts.heads + 2 * facts.kv_heads) * facts.head_dim
    widest = 5 * facts.hidden + max(3 * facts.intermediate, heads)
    return kind.itemsize * widest + _wide(kind) * facts.head_dim


def activations(
    facts: HeadFacts, work: Work, dtype: torch.dtype, captured: torch.dtype, *, blocks: bool, rows_learn: bool = True
) -> int:
    """Bytes that S steps of a head of type `dtype` keep for the way back.

    A token keeps in each step, of values of b bytes in the head's type and of w bytes in that of its sums:

        b · 6 H         the first layer: two norms before their weights (2), both sides of what qkv reads (2), the norm
                        before the MLP before its weight (1), what gate_up reads (1); 4 in a further layer
        b · 2 H         the end: the last norm before its weight, and the loss's gradient
        w · 3 H         what the norms read, in the type of sums; 2 where b = w, as a step's first is the last's end
        b · 4 I         gate and up (2), silu of gate, their product
        w · hd          cosines and sines
        b · (2 n_h + 3 n_kv) hd    turned queries and keys, and the projection that values lie in
        attention       `_blocks`, or on a CPU `_plain`

    Once for all steps: the fused features b · H, with captured ones b · C · H where they are of another type; and
    S · b · Vd · H, the output rows' gradient by each step, as the loss makes it on the way there.
    """
    b, w, same = dtype.itemsize, _wide(dtype), dtype.itemsize == _wide(dtype)
    hidden, layers = facts.hidden, facts.layers
    queries, keys = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    layer = b * (4 * facts.intermediate + 2 * queries + 3 * keys)
    norms_in = b * hidden * (6 + 4 * (layers - 1) + 2)
    norms_of = w * hidden * (2 * layers + 1 - same)
    factors = w * (2 * layers + 1)  # of norms, one a token
    once = b * hidden + (b * facts.captured * facts.target_hidden if captured != dtype else 0)
    attention = sum((_blocks if blocks else _plain)(facts, work, s, dtype) for s in range(work.steps))
    a_step = layer * layers + norms_in + norms_of + factors + w * facts.head_dim
    rows = work.steps * b * facts.draft_vocab * hidden if rows_learn else 0
    return work.tokens * (work.steps * a_step + layers * attention + once) + rows


def _blocks(facts: HeadFacts, _: Work, step: int, dtype: torch.dtype) -> int:
    """A token's: FlexAttention's result, logarithms of sums and largest scores; once own keys have joined, the result
    with them and the logarithms in another order.
    """
    joined = step > 0
    return facts.heads * (dtype.itemsize * facts.head_dim * (1 + joined) + _wide(dtype) * (2 + joined))


def _plain(facts: HeadFacts, work: Work, step: int, dtype: torch.dtype) -> int:
    """A token's: weights over L keys and s own ones, which of the L are hidden, the result; queries, keys and values
    as products read them, in the type of sums and one for each query head.
    """
    w, queries = _wide(dtype), facts.heads * facts.head_dim
    copies = 3 + (step > 0) + 2 * step
    return w * (facts.heads * (work.length + step) + copies * queries) + work.length + dtype.itemsize * queries


def _chunk(rows: int, weight: Tensor) -> int:
    """Rows of a chunk of logits."""
    first = next(chunks_of(rows, weight))
    return int(first.stop)


def _wide(dtype: torch.dtype) -> int:
    return torch.promote_types(dtype, torch.float32).itemsize


def _module(module: nn.Module) -> int:
    held: Iterable[Tensor] = (*module.parameters(), *module.buffers())
    return sum(t.nbytes for t in held)
