"""Configurations drawn at random over every key of the schema, about half of them sound."""

import random
from collections.abc import Iterator
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from eagle3.config.overrides import written
from eagle3.config.schema import EngineConfig
from eagle3.config.typed import LEAVES, section_of

BODY, HEAD = "target.architecture.", "draft.architecture."
V = 12  # tokens: so few that a head of random weights is right now and then
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": V,
}
TINY = (
    *("conf=tiny", "runtime.device=cpu", "runtime.max_seq_len=48", "runtime.max_batch_size=4", "kv.tokens_per_block=4"),
    *("target.dtype=float64", "draft.dtype=float64", "sampling.max_new_tokens=4", f"{BODY}num_hidden_layers=2"),
    *(f"{place}{name}={value}" for place in (BODY, HEAD) for name, value in SIZES.items()),
    *("spec.layers_to_capture=[0,1]", "spec.max_draft_len=3", "spec.dynamic_tree_max_topK=2"),
    "spec.max_total_draft_tokens=null",
)

CHAIN: dict[str, object] = {"spec.use_dynamic_tree": False, "spec.dynamic_tree_max_topK": None}
NONE: dict[str, object] = CHAIN | {"spec.decoding_type": "none", "spec.max_draft_len": None}
NONE |= {"spec.layers_to_capture": None}

# what an engine may have, most of it whatever the rest is; a value alone, or several that go together
SOUND: tuple[dict[str, tuple[object, ...]], ...] = (
    {
        "kv.tokens_per_block": (1, 2, 4, 8, 16, 32, 64, 128),
        "kv.max_tokens": (None, 256, 1000),
        "kv.draft_pool": ("separate", "joint"),
        "kv.free_gpu_memory_fraction": (0.1, 0.5),
        "kv.dtype": ("auto",),
        "kv.enable_block_reuse": (False,),
    },
    {
        "runtime.max_batch_size": (1, 2, 3, 5),
        "runtime.max_seq_len": (8, 20, 48),
        "runtime.max_num_tokens": (64, 100, 300),
        "runtime.prompt_chunk": (1, 3, 16, None),
        "runtime.cuda_graph": (True, False),
        "runtime.cuda_graph_prompt_rows": ([], [16], [3, 60], None),
        "runtime.cuda_graph_batch_sizes": (None,),
        "runtime.batch_invariant": (False, False, True),
        "runtime.tensor_parallel_size": (1,),
        "runtime.pipeline_parallel_size": (1,),
        "runtime.device": ("cpu",),
    },
    {
        "sampling.max_new_tokens": (1, 2, 5),
        "sampling.temperature": (0.3, 1.0, 1.5),
        "sampling.top_k": (1, 3, V, 1000, None),
        "sampling.top_p": (0.5, 0.9, 1.0),
        "sampling.min_p": (0.0, 0.05),
        "sampling.seed": (0, 7, 2**63 - 1),
        "sampling.stop_token_ids": ([], [3], [V - 1, 3, 3]),
        "sampling.ignore_eos": (True, False),
        "sampling.stop": (None, []),
        "sampling.min_new_tokens": (0, 1),
        "sampling.presence_penalty": (0.0, 0.5, -2.0),
        "sampling.frequency_penalty": (0.0, 1.0),
        "sampling.repetition_penalty": (1.0, 1.3, 0.7),
        "sampling.logprobs": (None, 0, 3, 20),
        "sampling.n": (1,),
        "sampling.beam_width": (1,),
    },
    {
        "spec.max_draft_len": (1, 2, 3, 5),
        "spec.dynamic_tree_max_topK": (1, 2, 3, 4),
        "spec.layers_to_capture": ([0], [1], [-1, 1], [1, 0, 1]),
        "spec.use_rejection_sampling": (False, True),
        "spec.enable_penalty": (False, True),
        "spec.synthetic_acceptance": (None, None, 1.5),
        "draft.context_limit": ("extend", "stop_drafting", "error"),
        f"{HEAD}max_position_embeddings": (4, 12, 48, 1024),
        f"{HEAD}draft_vocab_size": (None, 5, V),
        f"{HEAD}intermediate_size": (8, 40),
        "draft.embedding": ("auto", "target"),
        "draft.normed_twice": (False, True),
        "draft.norm_output_feeds_back": (True, False),
        "draft.layer_ids_convention": ("auto", "output"),
    },
    {
        f"{BODY}num_key_value_heads": (1, 2, 4, None),
        f"{BODY}head_dim": (None, 2, 6),
        f"{BODY}rms_norm_eps": (1e-5, 0.1),
        f"{BODY}rope_theta": (100.0, 5e5),
        f"{BODY}rope_scaling": (None, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 3}),
        f"{BODY}tie_word_embeddings": (False, True),
        f"{BODY}attention_bias": (False, True),
        f"{BODY}mlp_bias": (False, True),
        f"{BODY}max_position_embeddings": (32, 48, 1024),
        f"{BODY}intermediate_size": (8, 40),
    },
    {
        "bench.batch_sizes": ([1], [2, 1]),
        "bench.output_len": (3,),
        "bench.ignore_eos": (False,),
        "data.temperatures": ([0.5], [0.0, 1.0]),
        "data.eval_share": (0.5,),
        "data.sets": ([], ["self:3"]),
        "data.chat": (None, True),
        "train.loss": ("ce", "kl"),
        "train.mean": ("all", "masked"),
        "train.lm_head": ("own", "target", "frozen"),
        "train.long_samples": ("skip", "refuse"),
        "train.lr": (1e-3,),
        "train.draft_vocab_size": (None, V),
        "train.layers_to_capture": (None, [0, 1]),
    },
)
FAMILY: tuple[dict[str, object], ...] = (
    {f"{BODY}architecture": "Qwen3ForCausalLM", f"{BODY}sliding_window": 4},
    {f"{BODY}architecture": "MistralForCausalLM", f"{BODY}sliding_window": 3},
    {f"{BODY}architecture": "Qwen2ForCausalLM"},
)
_FULL, _SLIDES = "full_attention", "sliding_attention"
WINDOWS = {f"{BODY}layer_types": [_FULL, _SLIDES]}
GROUPS = ("spec=chain3", "sampling=sampled", "spec=wide", "conf=tini", "recipe=null")
STRANGE = (
    *("spec.max_draft_lenn=3", "kv.page_size=4", "nothing=1", "sampling.stop.deep=1", "target.architecture.colour=red"),
    *("runtime=none", "+kv.more=1", "~kv.max_tokens", "spec.max_draft_len=1,2", "kv.max_tokens=${nowhere}", "a b=1"),
    *("kv.max_tokens=[1,", "=3", "sampling.logit_bias.3=1", "spec={max_draft_len: 2, colour: red}", "hydra.nothing=1"),
    *("target.architecture=null", "sampling=null", "draft.architecture={vocab_size: 5}", "sampling.top_p=${kv}"),
)
_WILD: dict[object, tuple[str, ...]] = {
    int: ("-1", "0", "1.5", "x", "true", "1073741824", "9223372036854775808", "-9223372036854775809", f"1{'0' * 30}"),
    float: ("nan", "inf", "-inf", "-1", "x", "[1]", "1e400", "true"),
    bool: ("3", "maybe", "[]", "null"),
    str: ("''", "' '", "null", "5", "./nothing", "pypi:x", "eagle3:nothing", "'a\\0b'", "[a]", "~nobody-here/x"),
    list: ("null", "[x]", "[-5]", "[0]", "[1.5]", "5", "{a: 1}", "[[1]]", "[99999999999999999999]", "[null]", "[nan]"),
    dict: ("{a: b}", "5", "[1]", "{rope_type: yarn}", "{1: 2}", "{rope_type: nothing}", "x", "{factor: 0}"),
    Enum: ("nothing", "3", "[auto]", "null"),
}


def hints(section: type = EngineConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf's key and type."""
    for name, hint in get_type_hints(section).items():
        if inner := section_of(hint):
            yield from hints(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", hint


HINTS = dict(hints())
assert set(HINTS) == set(LEAVES)


def wild(key: str, rng: random.Random) -> str:
    """A value of the wrong kind or beyond a range, or one that is just right."""
    options = [option for option in get_args(HINTS[key]) if option is not NoneType] or [HINTS[key]]
    kind = get_origin(HINTS[key]) or options[0]
    kind = kind if kind in _WILD else get_origin(options[0]) or options[0]
    if kind not in _WILD:
        kind = Enum
        options = [member.name for member in options[0]]
        return rng.choice([*_WILD[Enum], *options, *options])
    return rng.choice(_WILD[kind])


def mapping(value: object) -> str:
    """As an override writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {mapping(inner)}" for key, inner in value.items()) + "}"
    return "null" if value is None else written("", value)[1:]


def drawn(seed: int) -> tuple[list[str], list[str]]:
    """Choices of groups, and overrides of values; the same for a seed. Two of three have nothing wild."""
    rng = random.Random(seed)
    values: dict[str, str] = {}
    shape = rng.choice(["none", "chain", "tree", "tree", "chain"])
    for key, value in {"none": NONE, "chain": CHAIN, "tree": {}}[shape].items():
        values[key] = mapping(value)
    for section in SOUND:
        for key in rng.sample(sorted(section), k=rng.randint(0, 3)):
            if not (shape == "none" and key.startswith("spec.")) and not (shape == "chain" and key.endswith("topK")):
                values[key] = mapping(rng.choice(section[key]))
    if rng.random() < 0.25:
        family = rng.choice(FAMILY) | (WINDOWS if rng.random() < 0.3 else {})
        values |= {key: mapping(value) for key, value in family.items()}
    if rng.random() < 0.6:
        values["kv.tokens_per_block"] = str(1 << rng.randrange(8))
    if shape == "chain" and rng.random() < 0.2:
        values["spec.use_rejection_sampling"] = "true"
    if shape != "none" and rng.random() < 0.05:
        values["spec.synthetic_acceptance"] = "1.5"
    if rng.random() < 0.4:
        values["sampling.temperature"] = mapping(rng.choice((0.5, 1.0)))
    groups: list[str] = []
    more: list[str] = []
    if rng.random() < 0.4:
        for _ in range(rng.randint(1, 3)):
            key = rng.choice(LEAVES)
            values[key] = wild(key, rng)
        if rng.random() < 0.4:
            more.append(rng.choice(STRANGE))
    if rng.random() < 0.15:
        groups.append(rng.choice(GROUPS))
    items = [f"{key}={value}" for key, value in values.items()]
    rng.shuffle(items)
    return groups, items + more
