"""What is built and what is not: the one table behind `eagle3 support` and the refusals by name."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from eagle3.config.schema import DecodingType, DraftPool, DType, EngineConfig
from eagle3.errors import Problem


@dataclass(frozen=True)
class Feature:
    """`asks` says for each key which values ask for the feature."""

    name: str
    built: bool
    asks: Mapping[str, Callable[[object], bool]]
    note: str = ""

    def asked(self, cfg: EngineConfig) -> Iterator[tuple[str, object]]:
        """Keys, with their values, by which a configuration asks for it."""
        for key, wants in self.asks.items():
            if wants(value := read(cfg, key)):
                yield key, value


def read(cfg: EngineConfig, key: str) -> object:
    """The value at a dotted key; None where a section on the way is None."""
    value: object = cfg
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def beside(*neutral: object) -> Callable[[object], bool]:
    """True for all values but None and these."""
    return lambda value: value is not None and value not in neutral


def is_(wanted: object) -> Callable[[object], bool]:
    """True for this value."""
    return lambda value: value == wanted


# architecture names that models/families knows -> which of the facts that not all of them have
TARGETS: Mapping[str, frozenset[str]] = {
    "LlamaForCausalLM": frozenset({"attention_bias", "mlp_bias"}),
    "MistralForCausalLM": frozenset({"sliding_window"}),
    "Qwen2ForCausalLM": frozenset({"sliding_window", "layer_types"}),
    "Qwen3ForCausalLM": frozenset({"attention_bias", "sliding_window", "layer_types"}),
}

FEATURES = (
    Feature("plain decoding", True, {}, "spec=none: paged KV, continuous batching, chunked prompts"),
    Feature("Llama targets", True, {}, "LlamaForCausalLM (Llama, Vicuna, SmolLM2), all rope scalings"),
    Feature("Mistral targets", True, {}, "MistralForCausalLM; windows in plain decoding, chains and trees"),
    Feature("Qwen targets", True, {}, "Qwen2ForCausalLM (Qwen2, Qwen2.5), Qwen3ForCausalLM; windows of some layers"),
    Feature("temperature, top-k, top-p, min-p", True, {}, "per request, seeded"),
    Feature("drafting", True, {"spec.decoding_type": is_(DecodingType.eagle3)}, "spec=chain, spec=tree"),
    Feature("heads of the official code", True, {}, "EAGLE's own, midlayer.*; .bin or safetensors"),
    Feature("heads of SpecForge", True, {}, "midlayer.*; draft.norm_output_feeds_back=false for EAGLE-3.1 of old"),
    Feature("heads of AngelSlim", True, {}, "midlayer.*; lists of layers mean outputs"),
    Feature("heads of NVIDIA ModelOpt", True, {}, "layers.0.*, unsorted d2t; draft.normed_twice for 0.41 and later"),
    Feature("heads of speculators", True, {}, "Llama and Qwen3 layers; lists of layers mean inputs"),
    Feature("heads of NeMo", True, {}, "model.*"),
    Feature(
        "variants of heads",
        True,
        {},
        "norm_before_fc, fc_norm, norm_output, norm_before_residual, query and key norms, eh_proj_before_attn, several"
        " layers, heads of the final hidden alone; MLA, P-EAGLE, Medusa and quantised heads are refused when loaded",
    ),
    Feature("rejection sampling", True, {"spec.use_rejection_sampling": is_(True)}, "sampled chains"),
    Feature("synthetic acceptance", True, {"spec.synthetic_acceptance": beside()}, "for timing only"),
    Feature("joint draft pool", True, {"kv.draft_pool": is_(DraftPool.joint)}),
    Feature("tensor parallelism", False, {"runtime.tensor_parallel_size": beside(1)}),
    Feature("pipeline parallelism", False, {"runtime.pipeline_parallel_size": beside(1)}),
    Feature("MTP-Eagle", False, {"spec.decoding_type": is_(DecodingType.mtp)}),
    Feature(
        "other families of targets",
        False,
        {"target.architecture.architecture": beside(*TARGETS)},
        "MoE and MLA among them",
    ),
    Feature("draft length schedules", False, {
        "spec.draft_len_schedule": beside(),
        "spec.max_concurrency": beside(),
    }),
    Feature("acceptance gate", False, {
        "spec.acceptance_rate_window_size": beside(0),
        "spec.acceptance_rate_threshold": beside(),
    }),
    Feature("relaxed acceptance", False, {
        "spec.use_relaxed_acceptance_for_thinking": is_(True),
        "spec.relaxed_topk": beside(),
        "spec.relaxed_delta": beside(),
    }),
    Feature("suffix automaton", False, {"spec.sa_config": beside()}),
    Feature("block reuse", False, {"kv.enable_block_reuse": is_(True)}),
    Feature("KV of another type", False, {"kv.dtype": beside(DType.auto)}, "quantised KV too"),
    Feature("penalties", True, {
        "spec.enable_penalty": is_(True),
        "sampling.presence_penalty": beside(0.0),
        "sampling.frequency_penalty": beside(0.0),
        "sampling.repetition_penalty": beside(1.0),
    }, "presence, frequency, repetition, by each node's path"),
    Feature("log probabilities", True, {"sampling.logprobs": beside()}, "of each token, and the 20 best beside it"),
    Feature("logit bias", False, {"sampling.logit_bias": beside()}),
    Feature("several answers a prompt", False, {"sampling.n": beside(1)}),
    Feature("beam search", False, {"sampling.beam_width": beside(1)}),
    Feature("stop strings", True, {"sampling.stop": beside()}, "across the borders of tokens and characters"),
    Feature("least answer length", True, {"sampling.min_new_tokens": beside(0)}),
    Feature("guided decoding", False, {"sampling.guided_decoding": beside()}),
)  # fmt: skip

BUILT = frozenset(feature.name for feature in FEATURES if feature.built)


def unsupported(cfg: EngineConfig, built: frozenset[str] = BUILT) -> Iterator[tuple[str, Problem]]:
    """What a configuration asks for and is not built: the feature's name, and the key that asks."""
    for feature in FEATURES:
        if feature.name not in built:
            for key, value in feature.asked(cfg):
                yield feature.name, Problem(key, f"{feature.name} is not built yet (see `eagle3 support`)", value)
