"""From a composed tree of plain values to the dataclasses, key by key, so that every fault is told."""

import types
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eagle3.config.schema import EngineConfig
from eagle3.errors import Problem

# names known elsewhere, or in older releases, by their last part
HINTS = {
    "eagle_choices": "static trees are gone; use spec=tree, which grows its tree anew each step",
    "greedy_sampling": "it is gone; greedy is sampling.temperature=0",
    "posterior_threshold": "it is gone; verification is lossless and has no threshold",
    "eagle3_one_model": "it is gone; there is one engine, leave it out",
    "eagle3_layers_to_capture": "use spec.layers_to_capture",
    "eagle3_model_arch": "it is gone; the head's files say what it is",
    "speculative_model": "use draft.checkpoint",
    "speculative_model_dir": "use draft.checkpoint",
    "speculative_config": "use the sections spec and draft",
    "num_eagle_layers": "it is gone; the depth is spec.max_draft_len",
    "max_non_leaves_per_layer": "it is gone; the width is spec.dynamic_tree_max_topK",
    "num_nextn_predict_layers": "use spec.max_draft_len",
    "num_speculative_tokens": "use spec.max_draft_len",
    "speculative_num_steps": "use spec.max_draft_len",
    "speculative_eagle_topk": "use spec.dynamic_tree_max_topK with spec=tree",
    "speculative_num_draft_tokens": "use spec.max_total_draft_tokens, which does not count the root",
    "allow_advanced_sampling": "it is gone; all sampling filters always work",
    "advanced_sampling_mode": "it is gone; all sampling filters always work",
    "acceptance_window": "use spec.acceptance_rate_window_size",
    "acceptance_length_threshold": "use spec.acceptance_rate_threshold",
    "speculative_token_map": "it is gone; the map is the head's d2t tensor",
    "model": "use target.checkpoint",
    "page_size": "use kv.tokens_per_block",
    "block_size": "use kv.tokens_per_block",
    "gpu_memory_utilization": "use kv.free_gpu_memory_fraction",
    "mem_fraction_static": "use kv.free_gpu_memory_fraction",
    "max_model_len": "use runtime.max_seq_len",
    "max_input_len": "use runtime.max_seq_len, prompt and answer together",
    "tp_size": "use runtime.tensor_parallel_size",
    "pp_size": "use runtime.pipeline_parallel_size",
    "enable_chunked_prefill": "prompts are always chunked; use runtime.prompt_chunk",
    "chunked_prefill_size": "use runtime.prompt_chunk",
    "max_output_len": "use sampling.max_new_tokens",
    "random_seed": "use sampling.seed",
}
EXACT_HINTS = {
    "spec.max_batch_size": "it is taken from runtime.max_batch_size",
    "spec.load_format": "use draft.load_format",
    "spec.speculative_model": "use draft.checkpoint",
    "sampling.max_tokens": "use sampling.max_new_tokens",
    "prompt": "prompts are given by --prompt, --prompt-file or on stdin",
}


def section_of(hint: object) -> type | None:
    """The dataclass that a field's type names, be it optional."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    found = [option for option in options if isinstance(option, type) and is_dataclass(option)]
    return found[0] if found else None


def known_keys(section: type = EngineConfig, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the schema, sections included."""
    hints = get_type_hints(section)
    for field in fields(section):
        key = prefix + field.name
        yield key
        if inner := section_of(hints[field.name]):
            yield from known_keys(inner, key + ".")


KEYS = tuple(known_keys())
LEAVES = tuple(key for key in KEYS if not any(other.startswith(key + ".") for other in KEYS))
OPEN = tuple(
    key
    for key in KEYS
    if key.endswith(("rope_scaling", "draft_len_schedule", "sa_config", "logit_bias", "guided_decoding"))
)


def is_known(key: str) -> bool:
    """Whether a key is in the schema or inside one of its open dicts."""
    return key in KEYS or any(key.startswith(name + ".") for name in OPEN)


def unknown(key: str, value: object = None, origin: str | None = None) -> Problem:
    """The problem of a key that is not in the schema, with a hint at what was meant."""
    parent, _, leaf = key.rpartition(".")
    if hint := EXACT_HINTS.get(key) or HINTS.get(leaf):
        return Problem(key, f"unknown key: {hint}", value, origin)
    elsewhere = [name for name in KEYS if name.rpartition(".")[2] == leaf]
    siblings = {name.rpartition(".")[2]: name for name in KEYS if name.rpartition(".")[0] == parent}
    close = [siblings[name] for name in get_close_matches(leaf, siblings, n=1)]
    guess = elsewhere[:1] or close or get_close_matches(key, LEAVES, n=1, cutoff=0.75)
    message = f"unknown key; did you mean {guess[0]}?" if guess else "unknown key"
    return Problem(key, message, value, origin)


def wanted(hint: object) -> str:
    """A field's type in words."""
    if get_origin(hint) in (Union, types.UnionType):
        names = [wanted(option) for option in get_args(hint) if option is not type(None)]
        return " or ".join([*names, "null"])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(member.name for member in hint)
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    shapes = {list: "a list", dict: "a mapping"}
    if (origin := get_origin(hint)) in shapes:
        inner = ", ".join(getattr(arg, "__name__", str(arg)) for arg in get_args(hint))
        return f"{shapes[origin]} of {inner}"
    return "a section" if section_of(hint) else plain.get(hint, str(hint)) if isinstance(hint, type) else str(hint)


def plain(node: DictConfig) -> dict[str, Any]:
    """A tree as plain values, interpolations as they are written."""
    values = OmegaConf.to_container(node)
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items()}


@cache  # several times as dear as its copy
def _holder(cls: type) -> DictConfig:
    """A section's defaults, which take values of their fields' types alone."""
    made = OmegaConf.structured(cls)
    assert isinstance(made, DictConfig)
    return made


class Reader:
    """Fills dataclasses from a composed tree and keeps the faults."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def fault(self, key: str, message: str, value: object = None) -> None:
        """Note a problem."""
        self.problems.append(Problem(key, message, value))

    def section(self, cls: type, node: DictConfig, prefix: str = "") -> object:
        """An instance of `cls`; what is faulty or required and missing is None there or the default."""
        hints = get_type_hints(cls)
        holder = _holder(cls)
        if not all(map(section_of, hints.values())):  # else nothing is ever put into it
            holder = deepcopy(holder)
        values = {name: None for name in hints if OmegaConf.is_missing(holder, name)}
        for name in map(str, node):
            key = f"{prefix}{name}"
            if name == "hydra" and not prefix:
                continue
            if name not in hints:
                self.problems.append(unknown(key, plain(node)[name]))
            elif OmegaConf.is_missing(node, name):
                self.fault(key, "required: give a value", "???")
            else:
                self.field(hints[name], holder, node, name, key, values)
        given = set(node.keys())
        for name, hint in hints.items():
            if name not in given and name in values and not section_of(hint):
                self.fault(f"{prefix}{name}", "required: give a value", "???")
        return cls(**values)

    def field(
        self, hint: object, holder: DictConfig, node: DictConfig, name: str, key: str, into: dict[str, Any]
    ) -> None:
        """Put one field, of type `hint`, into `into`, or note why not."""
        try:
            value = node[name]
            inner = section_of(hint)
            if inner is not None and isinstance(value, DictConfig):
                into[name] = self.section(inner, value, key + ".")
                return
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            raw = plain(node)[name]
            self.fault(key, f"cannot be resolved: {str(error).splitlines()[0]}", raw)
            return
        try:
            holder[name] = value
            into[name] = OmegaConf.to_container(held) if OmegaConf.is_config(held := holder[name]) else held
        except (OmegaConfBaseException, AssertionError, OverflowError):
            self.fault(key, f"must be {wanted(hint)}", value)


def typed(cfg: DictConfig) -> tuple[EngineConfig, list[Problem]]:
    """The configuration as dataclasses, and every unknown key, wrong type, missing or unresolvable value."""
    reader = Reader()
    config = reader.section(EngineConfig, cfg)
    assert isinstance(config, EngineConfig)
    return config, reader.problems
