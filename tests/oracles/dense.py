"""Target and head once more in numpy, over whole sequences: no cache, no pages, no batch; float64."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from eagle3.config.shape import DraftShape
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from oracles.official_tree import Draft, Path, accept_greedy, grow

Array = NDArray[np.float64]


def target_pass(target: Decoder, tokens: Sequence[int]) -> tuple[list[Array], Array]:
    """Outputs [T, H] of all layers, and logits [T, V]."""
    assert target.lm_head is not None
    x, outputs = _weight(target.embed)[list(tokens)], []
    windows = target.facts.windows or (None,) * len(target.layers)
    for layer, window in zip(target.layers, windows, strict=True):
        x = x + _attention(layer.attn, _rms(x, layer.attn_norm), target.facts.rope.theta, window)
        x = x + _mlp(layer.mlp, _rms(x, layer.mlp_norm))
        outputs.append(x)
    return outputs, _rms(x, target.norm) @ _weight(target.lm_head).T


def head_pass(head: EagleHead, ids: Sequence[int], features: Array) -> tuple[Array, Array]:
    """Log-probabilities [Vd] after the last row, and the feature that it feeds back [H]."""
    (layer,) = head.layers
    assert head.lm_head is not None
    embedded = _weight(head.lender.embed)[list(ids)]
    x = np.concatenate([_rms(embedded, layer.embed_norm), _rms(features, layer.attn_norm)], axis=1)
    x = features + _attention(layer.attn, x, head.facts.rope.theta)
    last = (x + _mlp(layer.mlp, _rms(x, layer.mlp_norm)))[-1]
    logits = _rms(last, head.norm) @ _weight(head.lm_head).T
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum()), last


def drafts(head: EagleHead, captured: Array, tokens: Sequence[int], root: int) -> Draft:
    """What the head guesses after paths from the root at position `root`; captured [T, C·H] of the target."""
    fused = captured[:root] @ _weight(head.fc).T

    @cache
    def after(path: Path) -> tuple[list[float], Array]:
        """Log-probabilities, and the feature fed back."""
        fed = [after(path[:end])[1][None] for end in range(1, len(path))]
        logs, feedback = head_pass(head, [*tokens[1:root], *path], np.concatenate([fused, *fed]))
        return logs.tolist(), feedback

    return lambda path: after(path)[0]


def all_drafts(
    target: Decoder, head: EagleHead, layers: Sequence[int], tokens: Sequence[int]
) -> Callable[[int], Draft]:
    """The guesses by a root's position; what was worked out for one shape of trees is there for the next."""
    outputs, _ = target_pass(target, tokens)
    captured = np.concatenate([outputs[i] for i in layers], axis=1)
    return cache(lambda root: drafts(head, captured, tokens, root))


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
    return counts_of(all_drafts(target, head, layers, tokens), offsets(head), tokens, prompt_len, limit, shape)


def counts_of(
    guessed: Callable[[int], Draft],
    d2t: Sequence[int],
    tokens: Sequence[int],
    prompt_len: int,
    limit: int,
    shape: DraftShape,
) -> list[int]:
    """The same, of what `all_drafts` gives."""
    counts, root = [], prompt_len
    while root + 1 - prompt_len < limit:
        tree = grow(guessed(root), tokens[root], shape.nodes, shape.top_k, shape.depth - 1, d2t)
        nodes, _ = accept_greedy(tree, lambda path, root=root: tokens[root + len(path)])
        counts.append(len(nodes))
        root += len(nodes) + 1
    return counts


def _weight(module: torch.nn.Module) -> Array:
    array: Array = module.weight.numpy()
    return array


def _rms(x: Array, norm: torch.nn.Module) -> Array:
    scaled: Array = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + norm.eps) * _weight(norm)
    return scaled


def _mlp(mlp: torch.nn.Module, x: Array) -> Array:
    gate, up = np.split(x @ _weight(mlp.gate_up).T, 2, axis=-1)
    out: Array = (gate / (1 + np.exp(-gate)) * up) @ _weight(mlp.down).T
    return out


def _attention(attn: torch.nn.Module, x: Array, theta: float, window: int | None = None) -> Array:
    """Causal, of one sequence from position 0 on: x [T, in] -> [T, H]. A row sees the last `window` of its past."""
    T, hd, kv = x.shape[0], attn.head_dim, attn.kv_heads
    projected = x @ _weight(attn.qkv).T + (0 if attn.qkv.bias is None else attn.qkv.bias.numpy())
    heads = projected.reshape(T, -1, hd).swapaxes(0, 1)  # [n, T, hd]
    q, k = heads[: attn.heads], heads[attn.heads : -kv]
    if attn.q_norm is not None:
        q, k = _rms(q, attn.q_norm), _rms(k, attn.k_norm)
    q, k = _turn(q, theta), _turn(k, theta)
    k, v = (np.repeat(t, attn.heads // kv, axis=0) for t in (k, heads[-kv:]))
    scores = np.where(_sees(T, window), q @ k.swapaxes(1, 2) / hd**0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = weights / weights.sum(-1, keepdims=True) @ v
    out: Array = mixed.swapaxes(0, 1).reshape(T, -1) @ _weight(attn.o).T
    return out


@cache
def _sees(T: int, window: int | None) -> NDArray[np.bool_]:
    """[row, column]"""
    past = np.arange(T)[:, None] - np.arange(T)
    sees: NDArray[np.bool_] = (past >= 0) & (past < (T if window is None else window))
    return sees


@cache
def _circle(T: int, hd: int, theta: float) -> tuple[Array, Array]:
    """Cosines and sines [T, hd / 2]."""
    angle = np.arange(T)[:, None] / theta ** (np.arange(0, hd, 2) / hd)
    return np.cos(angle), np.sin(angle)


def _turn(x: Array, theta: float) -> Array:
    """x [n, T, hd]; the halves of a head are the pairs."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = _circle(*x.shape[1:], theta)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
