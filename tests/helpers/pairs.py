"""Tiny targets and heads in float64, and engines around them, built in memory."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from eagle3.build.engine import Parts, assemble
from eagle3.config.schema import DraftPool, EngineConfig, KVConfig, RuntimeConfig, SpecConfig, TargetConfig
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from eagle3.engine.scheduler import Limits
from eagle3.models.decoder import Decoder, ModelFacts
from eagle3.models.draft import DraftModel
from eagle3.models.eagle import EagleHead
from eagle3.models.head_facts import HeadFacts, Lender
from eagle3.models.weights import dummy_weights
from eagle3.nn.rope import RopeFacts
from eagle3.text.tokenizer import Tokenizer

CPU = torch.device("cpu")
PLAIN = DraftShape(depth=0, top_k=1, nodes=1)
POSITIONS = 640  # rope tables: the longest sequence of any test, and room for guesses


def facts(
    vocab: int, *, hidden: int = 32, layers: int = 8, heads: int = 4, kv_heads: int = 2, **changes: Any
) -> ModelFacts:
    """A tiny Llama, or with `changes` of fields of ModelFacts another model."""
    plain = ModelFacts(
        architecture="LlamaForCausalLM",
        hidden=hidden,
        intermediate=2 * hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab=vocab,
        max_positions=POSITIONS,
        eps=1e-6,
        tied=False,
        attention_bias=False,
        mlp_bias=False,
        rope=RopeFacts(10000.0, POSITIONS),
    )
    return replace(plain, **changes)


def random_target(known: ModelFacts, seed: int = 0, std: float = 0.3) -> Decoder:
    """Random weights, large enough that no two logits are near each other."""
    model = Decoder(known, max_positions=POSITIONS, max_seq_len=POSITIONS, dtype=torch.float64, device=CPU)
    dummy_weights(model, seed=seed, std=std)
    return model.requires_grad_(False)


def engine(
    target: Decoder,
    draft: tuple[DraftModel, tuple[int, ...]] | None = None,
    shape: DraftShape = PLAIN,
    *,
    page: int = 4,
    batch: int = 4,
    max_seq_len: int = 128,
    chunk: int | None = None,
    tokens: int | None = None,
    joint: bool = False,
    spec: SpecConfig | None = None,
    ends: frozenset[int] = frozenset(),
    tokenizer: Tokenizer | None = None,
    stop_at: int | None = None,
) -> Engine:
    """An engine whose pools hold `tokens` entries, or all that `batch` requests can need.

    `stop_at`: the positions that the head was made for, past which nothing is accepted.
    """
    rows = max(64, batch * shape.nodes)
    most = tokens or batch * (max_seq_len + shape.path + shape.reserve + page)
    cfg = EngineConfig(
        target=TargetConfig(checkpoint="in memory"),
        spec=spec or SpecConfig(),
        kv=KVConfig(
            tokens_per_block=page,
            max_tokens=most,
            draft_pool=DraftPool.joint if joint else DraftPool.separate,
        ),
        runtime=RuntimeConfig(max_batch_size=batch, max_seq_len=max_seq_len, max_num_tokens=rows),
    )
    limits = Limits(batch, max_seq_len, rows, min(chunk or rows, rows))
    return assemble(cfg, shape, Parts(limits, target, draft, tokenizer, ends, stop_at))


def head_facts(known: ModelFacts, **changes: object) -> HeadFacts:
    """A one-layer head over three layers of a tiny target."""
    plain = HeadFacts(
        hidden=known.hidden,
        target_hidden=known.hidden,
        captured=3,
        intermediate=2 * known.hidden,
        layers=1,
        heads=known.heads,
        kv_heads=known.kv_heads,
        head_dim=known.head_dim,
        vocab=known.vocab,
        draft_vocab=known.vocab,
        eps=1e-6,
        rope=RopeFacts(10000.0, POSITIONS),
    )
    return replace(plain, **changes)


def empty_head(target: Decoder, shape: HeadFacts) -> EagleHead:
    """A head over `target` whose parameters are still to be filled."""
    head = EagleHead(
        shape,
        Lender.of(target),
        max_positions=POSITIONS,
        max_seq_len=POSITIONS,
        dtype=torch.float64,
        device=CPU,
    )
    return head.requires_grad_(False)


def random_head(target: Decoder, seed: int = 1, std: float = 0.3, **changes: object) -> EagleHead:
    """Random weights; with draft_vocab below the target's, a map onto scattered ids in no order."""
    shape = head_facts(target.facts, **changes)
    head = empty_head(target, replace(shape, mapped=shape.draft_vocab < shape.vocab))
    dummy_weights(head, seed=seed, std=std)
    if head.d2t is not None:
        chosen = torch.randperm(shape.vocab, generator=torch.Generator().manual_seed(seed))[: shape.draft_vocab]
        head.d2t.copy_(chosen - torch.arange(shape.draft_vocab))
    return head


LAYERS = (1, 3, 4)  # captured outputs of the eight


def random_pair(vocab: int, seed: int = 0, **sizes: int) -> tuple[Decoder, EagleHead]:
    """Attention, masks and features all real; of V = 8 some guesses are accepted."""
    target = random_target(facts(vocab, **sizes), seed=seed)
    return target, random_head(target, seed=seed + 1)


def cycle_pair(vocab: int = 16, bad: Collection[int] = (), **sizes: Any) -> tuple[Decoder, EagleHead]:
    """A target that says t + 1 (mod V) after t, and a head that knows it, but for the tokens after those in `bad`.

    Attention and MLP of the target are off: all its features are one-hot. The head's MLP takes a feature to that of
    the next token, so that its own feedback is as good as the target's feature. V is the hidden width too.
    """
    target = random_target(facts(vocab, hidden=vocab, **sizes))
    eye = torch.eye(vocab, dtype=torch.float64)
    after = eye.roll(1, 0)  # after @ e_t = e_(t+1)
    target.embed.weight.copy_(eye)
    assert target.lm_head is not None
    target.lm_head.weight.copy_(10 * after)
    for layer in target.layers:
        layer.attn.o.weight.zero_()
        layer.mlp.down.weight.zero_()

    head = random_head(target, intermediate=vocab)
    head.fc.weight.copy_(torch.cat([eye, 0 * eye, 0 * eye], dim=1))
    layer = head.layers[0]
    layer.attn.o.weight.zero_()
    layer.mlp.gate_up.weight.copy_(torch.cat([5 * eye, eye]))
    normed = (1 / vocab + 1e-6) ** -0.5  # of a one-hot feature
    product = torch.nn.functional.silu(torch.tensor(5 * normed, dtype=torch.float64)) * normed
    layer.mlp.down.weight.copy_((after - eye) / product)
    assert head.lm_head is not None
    head.lm_head.weight.copy_(10 * after)
    for token in bad:  # after `token` the head would say token + 2
        column = head.lm_head.weight[:, token]
        column.copy_(column.roll(1))
    return target, head


SMALL = (0, 1, 2)  # captured outputs of a target of four layers


def near_pair(
    kv_heads: int = 2, seed: int = 0, noise: float = 0.01, sharp: float = 0.7, **changes: Any
) -> tuple[Decoder, EagleHead]:
    """The cycle of 16 tokens, disturbed by attention and MLPs: features, masks and positions matter to some degree,
    and long runs are accepted. `sharp` scales both models' certainty, so that sampling strays.
    """
    target, head = cycle_pair(16, layers=4, kv_heads=kv_heads, **changes)
    assert target.lm_head is not None
    assert head.lm_head is not None
    make = torch.Generator().manual_seed(seed)
    for layers, scale in ((target.layers, noise), (head.layers, noise / 4)):
        for part in (p for layer in layers for p in (layer.attn.o, layer.mlp.down)):
            part.weight.add_(scale * torch.randn(part.weight.shape, generator=make, dtype=torch.float64))
    for part in (target.lm_head, head.lm_head):
        part.weight.mul_(sharp / 10)
    return target, head
