"""Whether an engine fits in a memory of so many bytes, by its sizes alone, and what to lower if not."""

from collections.abc import Iterator

from eagle3.config.facts import Facts, longest_request
from eagle3.config.schema import EngineConfig
from eagle3.config.shape import DraftShape
from eagle3.config.sizes import head_dim, kv_bytes_per_token, memory_sum
from eagle3.config.units import size
from eagle3.errors import Problem


def memory_fit(cfg: EngineConfig, shape: DraftShape, memory: int, *, sure: bool = False) -> tuple[list[Problem], str]:
    """What cannot fit, and in words what does.

    Workspaces and graphs are not in it: they are measured when an engine is built. `sure` judges nothing that is
    measured then too. Without the target's facts nothing is known.
    """
    target, per_token = Facts.of(cfg).target, kv_bytes_per_token(cfg)
    if target is None or per_token is None:
        return [], "unknown without facts of the target"
    rows = [row for row in memory_sum(cfg, shape) if not row[0].startswith("KV of ")]
    weights = sum(count for name, count in rows if " weights" in name)
    fixed, tokens = sum(count for _, count in rows), cfg.kv.max_tokens
    longest = longest_request(cfg.runtime, target.max_position_embeddings)
    least, share = shape.entries(longest), cfg.kv.free_gpu_memory_fraction
    room = max(0, int((memory - fixed) * (share if tokens is None else 1))) // per_token
    taken = f"weights, logits and captures take {size(fixed)} of {size(memory)}"
    problems = []
    if weights > memory:
        text = f"takes {size(weights)} of weights with its head, of {size(memory)}: choose a smaller one, or 16 bits"
        problems.append(Problem("target.checkpoint", f"{text} (target.dtype)", cfg.target.checkpoint))
    elif sure:
        problems += _tables(cfg, shape, head_dim(target), longest, memory)
    elif fixed > memory:
        text = f"{taken}: lower it, runtime.max_num_tokens, or the tree (spec.max_total_draft_tokens)"
        problems.append(Problem("runtime.max_batch_size", text, cfg.runtime.max_batch_size))
    elif tokens is not None and tokens > room:
        problems.append(Problem("kv.max_tokens", f"{taken}: lower it to {room}, or leave it out", tokens))
    elif tokens is None and room < least:
        text = f"{taken}, {room} KV entries of {size(per_token)} fit beside, one request may need {least}: lower it"
        problems.append(Problem("runtime.max_seq_len", f"{text}, or runtime.max_batch_size", longest))
    entries = room if tokens is None else tokens
    fits = f"{taken}; then {entries} KV entries, {entries // least} requests of {longest} tokens at once"
    return problems, f"{fits}, less what workspaces and graphs take"


def _tables(cfg: EngineConfig, shape: DraftShape, dim: int, longest: int, memory: int) -> Iterator[Problem]:
    """Cosines and sines of every position, and what a slot keeps of its tree at the least, made before all else."""
    batch = cfg.runtime.max_batch_size
    rope, slots = shape.entries(longest) * dim * 4, batch * shape.nodes * 28
    if rope > memory:
        text = f"positions' rotary tables take {size(rope)} of {size(memory)}: lower it"
        yield Problem("runtime.max_seq_len", text, longest)
    if slots > memory:
        yield Problem("runtime.max_batch_size", f"slots take {size(slots)} of {size(memory)}: lower it", batch)
