"""Tiny targets in float64 and engines around them, built in memory."""

import torch

from eagle3.build.engine import assemble
from eagle3.config.schema import DraftPool, EngineConfig, KVConfig, RuntimeConfig, SpecConfig, TargetConfig
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from eagle3.engine.scheduler import Limits
from eagle3.models.decoder import Decoder, ModelFacts
from eagle3.models.draft import DraftModel
from eagle3.models.weights import dummy_weights
from eagle3.nn.rope import RopeFacts

CPU = torch.device("cpu")
PLAIN = DraftShape(depth=0, top_k=1, nodes=1)
POSITIONS = 640  # rope tables: the longest sequence of any test, and room for guesses


def facts(vocab: int, *, hidden: int = 32, layers: int = 8, heads: int = 4, kv_heads: int = 2) -> ModelFacts:
    """A tiny Llama."""
    return ModelFacts(
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
) -> Engine:
    """An engine whose pools hold `tokens` entries, or all that `batch` requests can need."""
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
    return assemble(cfg, shape, limits, target, draft, ends=ends)
