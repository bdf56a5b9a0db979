"""Target and head once more, over whole sequences: no cache, no pages, no batch. Slow and plain, in float64."""

from collections.abc import Sequence
from functools import cache

import torch
from oracles.official_tree import Draft, Path, accept_greedy, grow
from torch import Tensor
from torch.nn.functional import silu

from eagle3.config.shape import DraftShape
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead


def target_pass(target: Decoder, tokens: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """Outputs [T, H] of all layers, and logits [T, V]."""
    assert target.lm_head is not None
    x, outputs = target.embed.weight[torch.tensor(tokens)], []
    for layer in target.layers:
        normed = _rms(x, layer.attn_norm)
        x = x + _attention(layer.attn, normed, target.facts.rope.theta)
        x = x + _mlp(layer.mlp, _rms(x, layer.mlp_norm))
        outputs.append(x)
    return outputs, _rms(x, target.norm) @ target.lm_head.weight.T


def head_pass(head: EagleHead, ids: Sequence[int], features: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities [Vd] after the last row, and the feature that it feeds back [H]."""
    (layer,) = head.layers
    assert head.lm_head is not None
    embedded = head.lender.embed.weight[torch.tensor(ids)]
    x = torch.cat([_rms(embedded, layer.embed_norm), _rms(features, layer.attn_norm)], dim=1)
    x = features + _attention(layer.attn, x, head.facts.rope.theta)
    x = x + _mlp(layer.mlp, _rms(x, layer.mlp_norm))
    last = x[-1]
    return (_rms(last, head.norm) @ head.lm_head.weight.T).log_softmax(-1), last


def drafts(head: EagleHead, captured: Tensor, tokens: Sequence[int], root: int) -> Draft:
    """What the head guesses after paths from the root at position `root`; captured [T, C·H] of the target."""
    fused = captured[:root] @ head.fc.weight.T

    @cache
    def after(path: Path) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, the feature fed back, and the features of all rows [root + nodes, H]."""
        features = fused
        if len(path) > 1:
            _, fed, above = after(path[:-1])
            features = torch.cat([above, fed[None]])
        logs, feedback = head_pass(head, [*tokens[1:root], *path], features)
        return logs, feedback, features

    return lambda path: after(path)[0].tolist()


def offsets(head: EagleHead) -> list[int]:
    """Target id - draft id."""
    return [0] * head.draft_vocab if head.d2t is None else head.d2t.tolist()


def accepted_counts(
    target: Decoder,
    head: EagleHead,
    layers: Sequence[int],
    tokens: Sequence[int],
    prompt_len: int,
    limit: int,
    shape: DraftShape,
) -> list[int]:
    """Accepted drafts of each step of a request that emits `limit` tokens.

    `tokens` is the plain output with its prompt, at least D + 1 tokens longer than the request.
    """
    outputs, _ = target_pass(target, tokens)
    captured = torch.cat([outputs[i] for i in layers], dim=1)
    counts, root = [], prompt_len
    while root + 1 - prompt_len < limit:
        draft = drafts(head, captured, tokens, root)
        tree = grow(draft, tokens[root], shape.nodes, shape.top_k, shape.depth - 1, offsets(head))
        nodes, _ = accept_greedy(tree, lambda path, root=root: tokens[root + len(path)])
        counts.append(len(nodes))
        root += len(nodes) + 1
    return counts


def _rms(x: Tensor, norm: torch.nn.Module) -> Tensor:
    scaled: Tensor = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
    return scaled


def _mlp(mlp: torch.nn.Module, x: Tensor) -> Tensor:
    gate, up = (x @ mlp.gate_up.weight.T).chunk(2, dim=-1)
    out: Tensor = (silu(gate) * up) @ mlp.down.weight.T
    return out


def _attention(attn: torch.nn.Module, x: Tensor, theta: float) -> Tensor:
    """Causal, of one sequence from position 0 on: x [T, in] -> [T, H]."""
    T, hd, kv = x.shape[0], attn.head_dim, attn.kv_heads
    q, k, v = (x @ attn.qkv.weight.T).view(T, -1, hd).split([attn.heads, kv, kv], dim=1)
    angle = torch.arange(T)[:, None] / theta ** (torch.arange(0, hd, 2, dtype=torch.float64) / hd)
    q, k = _turn(q, angle), _turn(k, angle)
    k, v = (t.repeat_interleave(attn.heads // kv, dim=1) for t in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / hd**0.5
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
    out: Tensor = mixed.flatten(1) @ attn.o.weight.T
    return out


def _turn(x: Tensor, angle: Tensor) -> Tensor:
    """x [T, heads, hd] by angle [T, hd / 2]; the halves of a head are the pairs."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
