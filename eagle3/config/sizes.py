"""What an engine takes of memory, from the inline facts alone."""

from eagle3.config.facts import Facts, longest_request
from eagle3.config.schema import Architecture, DType, EngineConfig
from eagle3.config.shape import DraftShape, default_capture

BYTES = {DType.float64: 8, DType.float32: 4, DType.bfloat16: 2, DType.float16: 2}


def bytes_of(dtype: DType, device: str) -> int:
    """Bytes a value; `auto` counts as 2, the common case on a GPU, and as 4 on a CPU."""
    return (4 if device == "cpu" else 2) if dtype is DType.auto else BYTES[dtype]


def type_of(dtype: DType, device: str) -> str:
    """The type that `bytes_of` reckons with, in words."""
    if dtype is not DType.auto:
        return str(dtype.value)
    return "float32" if device == "cpu" else "16 bits as on a GPU; runtime.device=cpu takes 32"


def head_dim(facts: Architecture) -> int:
    """Width of an attention head."""
    return facts.head_dim or facts.hidden_size // facts.num_attention_heads


def layer_size(facts: Architecture, qkv_in: int | None = None) -> int:
    """Values in one decoder layer; a head's first layer reads `qkv_in` = 2H."""
    hidden, dim, heads = facts.hidden_size, head_dim(facts), facts.num_attention_heads
    kv_heads = facts.num_key_value_heads or heads
    qkv = (heads + 2 * kv_heads) * dim * (qkv_in or hidden)
    return qkv + heads * dim * hidden + 3 * hidden * facts.intermediate_size + 2 * hidden


def target_size(facts: Architecture) -> int:
    """Values in a target: embedding, layers, last norm, and a head of its own unless tied."""
    tables = 1 if facts.tie_word_embeddings else 2
    return (
        tables * facts.vocab_size * facts.hidden_size + layer_size(facts) * facts.num_hidden_layers + facts.hidden_size
    )


def head_size(facts: Architecture, captured: int) -> int:
    """Values in an EAGLE-3 head that fuses `captured` features."""
    hidden = facts.hidden_size
    wide = facts.target_hidden_size or hidden
    own = facts.vocab_size * hidden if wide != hidden else 0  # another width: it ships its own embedding
    logits = (facts.draft_vocab_size or facts.vocab_size) * hidden
    layers = layer_size(facts, 2 * hidden) + layer_size(facts) * (facts.num_hidden_layers - 1)
    return captured * wide * hidden + layers + 2 * hidden + logits + own


def kv_bytes_per_token(cfg: EngineConfig) -> int | None:
    """Bytes of one position's K/V over all layers, draft layers included; None without facts."""
    facts = Facts.of(cfg)
    if facts.target is None:
        return None
    total = 0
    models = ((facts.target, cfg.target.dtype), (facts.draft, cfg.draft.dtype))
    for model, dtype in models:
        if model is not None:
            kv_heads = model.num_key_value_heads or model.num_attention_heads
            total += 2 * model.num_hidden_layers * kv_heads * head_dim(model) * bytes_of(dtype, cfg.runtime.device)
    return total


def penalised(cfg: EngineConfig) -> bool:
    """Whether penalties' counts are kept from the start; else from the first request on that asks for them."""
    s = cfg.sampling
    asked = (s.repetition_penalty, s.frequency_penalty, s.presence_penalty) != (1.0, 0.0, 0.0)
    return asked or cfg.spec.enable_penalty


def memory_sum(cfg: EngineConfig, shape: DraftShape) -> list[tuple[str, int]]:
    """What takes how many bytes; empty without inline facts of the target.

    A pool sized from free memory is not in it: it takes a share of the rest.
    """
    facts, run = Facts.of(cfg), cfg.runtime
    target = facts.target
    if target is None:
        return []
    size = bytes_of(cfg.target.dtype, run.device)
    batch, nodes = run.max_batch_size, shape.nodes
    rows = [(f"target weights, {type_of(cfg.target.dtype, run.device)}", target_size(target) * size)]
    if shape.depth:
        captured = len(cfg.spec.layers_to_capture or default_capture(target.num_hidden_layers))
        kept = shape.capture_rows(run.max_num_tokens, batch, longest_request(run, target.max_position_embeddings))
        rows.append(("capture buffer", kept * captured * target.hidden_size * size))
        if facts.draft is not None:
            weights = head_size(facts.draft, captured) * bytes_of(cfg.draft.dtype, run.device)
            rows.insert(1, (f"head weights, {type_of(cfg.draft.dtype, run.device)}", weights))
    rows.append(("logits workspace", batch * nodes * target.vocab_size * 4))
    if penalised(cfg):
        rows.append(("counts for penalties", (batch + 1) * target.vocab_size * 5))
    per_token = kv_bytes_per_token(cfg)
    if cfg.kv.max_tokens is not None and per_token is not None:
        rows.append((f"KV of {cfg.kv.max_tokens} entries", cfg.kv.max_tokens * per_token))
    return rows
