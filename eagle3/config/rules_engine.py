"""Rules of the KV pools, the run time and sampling: mostly ranges."""

import math
import re
from collections.abc import Iterator

from eagle3.config.facts import Facts
from eagle3.config.schema import EngineConfig
from eagle3.errors import Problem

COLDEST = 1e-5  # below it logits over the temperature leave float32

MOST = 2**30  # rows and positions are 32-bit integers


def pages(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Pages hold a power of two of entries; a pool holds a page and leaves some memory."""
    kv = cfg.kv
    if kv.tokens_per_block not in (1, 2, 4, 8, 16, 32, 64, 128):
        yield Problem("kv.tokens_per_block", "must be a power of two, 1 to 128", kv.tokens_per_block)
    elif kv.max_tokens is not None and kv.max_tokens < kv.tokens_per_block:
        message = f"must hold at least one page ({kv.tokens_per_block} entries)"
        yield Problem("kv.max_tokens", message, kv.max_tokens)
    if not 0 < kv.free_gpu_memory_fraction < 1:
        message = "must be above 0 and below 1"
        yield Problem("kv.free_gpu_memory_fraction", message, kv.free_gpu_memory_fraction)


def limits(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Counts are positive, a sequence has room for a prompt token and an answer token."""
    run = cfg.runtime
    for name in ("max_batch_size", "max_num_tokens", "tensor_parallel_size", "pipeline_parallel_size"):
        if (value := getattr(run, name)) < 1:
            yield Problem(f"runtime.{name}", "must be at least 1", value)
        elif value > MOST:
            yield Problem(f"runtime.{name}", "must be at most 2^30", value)
    if run.max_seq_len is not None and run.max_seq_len < 2:
        yield Problem("runtime.max_seq_len", "must be at least 2, a prompt and an answer", run.max_seq_len)
    elif run.max_seq_len is not None and run.max_seq_len > MOST:
        yield Problem("runtime.max_seq_len", "must be at most 2^30", run.max_seq_len)
    if run.prompt_chunk is not None and not 1 <= run.prompt_chunk <= max(run.max_num_tokens, 1):
        message = f"must be in [1, {run.max_num_tokens}], up to max_num_tokens"
        yield Problem("runtime.prompt_chunk", message, run.prompt_chunk)


def device(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """A device is auto, cpu, cuda or cuda:INDEX."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", cfg.runtime.device):
        yield Problem("runtime.device", "must be auto, cpu, cuda or cuda:INDEX", cfg.runtime.device)


def sampling(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Each filter is in its range."""
    s = cfg.sampling
    if s.max_new_tokens < 1:
        yield Problem("sampling.max_new_tokens", "must be at least 1", s.max_new_tokens)
    if not (s.temperature == 0 or (math.isfinite(s.temperature) and s.temperature >= COLDEST)):
        message = f"must be 0 (greedy) or a finite number from {COLDEST} on"
        yield Problem("sampling.temperature", message, s.temperature)
    if s.top_k is not None and not 1 <= s.top_k < 2**31:
        yield Problem("sampling.top_k", "must be in [1, 2^31), or null for all tokens", s.top_k)
    if not 0 < s.top_p <= 1:
        yield Problem("sampling.top_p", "must be above 0 and at most 1 (all tokens)", s.top_p)
    if not 0 <= s.min_p < 1:
        yield Problem("sampling.min_p", "must be from 0 (all tokens) to below 1", s.min_p)
    if not 0 <= s.seed < 2**63:
        yield Problem("sampling.seed", "must be in [0, 2^63)", s.seed)


def answers(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Penalties and log-probabilities are in their ranges, and an answer's least length is below its most."""
    s = cfg.sampling
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= (value := getattr(s, name)) <= 2:
            yield Problem(f"sampling.{name}", "must be in [-2, 2], 0 is off", value)
    if not 1e-5 <= s.repetition_penalty <= 1e5:
        message = "must be above 0, from 1e-5 to 1e5; 1 is off"
        yield Problem("sampling.repetition_penalty", message, s.repetition_penalty)
    if s.logprobs is not None and not 0 <= s.logprobs <= 20:
        message = "must be in [0, 20], the best beside a token's own; null for none"
        yield Problem("sampling.logprobs", message, s.logprobs)
    if not 0 <= s.min_new_tokens <= max(s.max_new_tokens, 0):
        message = f"must be in [0, {s.max_new_tokens}], up to max_new_tokens"
        yield Problem("sampling.min_new_tokens", message, s.min_new_tokens)


def stop_ids(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """Stop ids are ids of the vocabulary."""
    ids, size = cfg.sampling.stop_token_ids, facts.target.vocab_size if facts.target else None
    wrong = [i for i in ids if i < 0 or (size is not None and i >= size)]
    if wrong:
        message = f"must be in [0, {'V' if size is None else size}), the vocabulary; not {wrong}"
        yield Problem("sampling.stop_token_ids", message, ids)


def stop_strings(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Stop strings are texts that decoding can bring: not empty, and not the sign that stands for half a character."""
    stops = cfg.sampling.stop or []
    if wrong := [text for text in stops if not text or not _proper(text)]:
        yield Problem("sampling.stop", f"must be texts that are not empty and without U+FFFD; not {wrong!a}", stops)


def _proper(text: str) -> bool:
    """Without surrogates, which no UTF-8 has, too."""
    return not any(letter == "\ufffd" or 0xD800 <= ord(letter) < 0xE000 for letter in text)


def long_sequences(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """Beyond the positions a target was made for, its text may degrade."""
    longest = cfg.runtime.max_seq_len
    if longest and facts.target and longest > facts.target.max_position_embeddings:
        message = f"is beyond the target's max_position_embeddings ({facts.target.max_position_embeddings})"
        yield Problem("runtime.max_seq_len", message, longest)


def long_chains(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """Drafts deeper than the longest request are never asked for."""
    longest, shape = cfg.runtime.max_seq_len, facts.shape
    if longest is not None and shape is not None and shape.depth >= longest:
        message = f"reaches beyond every request: none is longer than runtime.max_seq_len ({longest})"
        yield Problem("spec.max_draft_len", message, cfg.spec.max_draft_len)


def long_answers(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """An answer is cut where prompt and answer reach max_seq_len."""
    longest, answer = cfg.runtime.max_seq_len, cfg.sampling.max_new_tokens
    if longest is not None and answer >= longest:
        message = f"will be cut: prompt and answer share runtime.max_seq_len ({longest})"
        yield Problem("sampling.max_new_tokens", message, answer)


def graph_sizes(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """Graphs are captured for batches that can run, the largest included, and for prompt passes that can."""
    sizes, most = cfg.runtime.cuda_graph_batch_sizes, cfg.runtime.max_batch_size
    if sizes is not None and most >= 1 and (not sizes or min(sizes) < 1 or max(sizes) != most):
        message = f"must be sizes from 1 to runtime.max_batch_size ({most}), {most} among them"
        yield Problem("runtime.cuda_graph_batch_sizes", message, sizes)
    rows, largest = cfg.runtime.cuda_graph_prompt_rows, cfg.runtime.max_num_tokens
    if rows and largest >= 1 and (min(rows) < 1 or max(rows) > largest):
        message = f"must be sizes from 1 to runtime.max_num_tokens ({largest}), or none"
        yield Problem("runtime.cuda_graph_prompt_rows", message, rows)


def batch_invariant(cfg: EngineConfig, facts: Facts) -> Iterator[Problem]:
    """Sums in an order of their own: rows of a target have it, but a tree's tail and a head's probabilities do not."""
    if not cfg.runtime.batch_invariant or facts.shape is None:
        return
    wrong = None
    if facts.shape.top_k > 1:
        wrong = f"spec.dynamic_tree_max_topK={facts.shape.top_k}: chains only, spec=chain or spec=none"
    elif cfg.spec.use_rejection_sampling:
        wrong = "spec.use_rejection_sampling: such answers depend on the head's bits, which are not fixed"
    if wrong:
        yield Problem("runtime.batch_invariant", f"cannot go with {wrong}", True)


def bench(cfg: EngineConfig, _: Facts) -> Iterator[Problem]:
    """There is something to measure."""
    b = cfg.bench
    if not b.batch_sizes or min(b.batch_sizes) < 1:
        yield Problem("bench.batch_sizes", "must be sizes from 1 on", b.batch_sizes)
    for name in ("prompt_len", "output_len", "repeats"):
        if getattr(b, name) < 1:
            yield Problem(f"bench.{name}", "must be at least 1", getattr(b, name))


def bench_fits(cfg: EngineConfig, longest_prompt: int) -> Iterator[Problem]:
    """What is measured fits the engine; asked by `benchmark` alone."""
    b, most, longest = cfg.bench, cfg.runtime.max_batch_size, cfg.runtime.max_seq_len
    if max(b.batch_sizes) > most:
        message = f"must not be above runtime.max_batch_size ({most})"
        yield Problem("bench.batch_sizes", message, b.batch_sizes)
    if longest is not None and longest_prompt + b.output_len > longest:
        message = f"must fit with the longest prompt ({longest_prompt} tokens) in runtime.max_seq_len ({longest})"
        yield Problem("bench.output_len", message, b.output_len)


ERRORS = (graph_sizes, batch_invariant, bench, pages, limits, device, sampling, answers, stop_ids, stop_strings)
REQUEST = (sampling, answers, stop_ids, stop_strings)  # what a request may break
WARNINGS = (long_sequences, long_chains, long_answers)
