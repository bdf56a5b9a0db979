"""From a configuration to what its data is made with: the prompts, the engine that answers."""

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from eagle3.config import rules
from eagle3.config.load import Composed
from eagle3.config.schema import DataConfig, DraftConfig, EngineConfig, SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.errors import ConfigError, Problem, UnsupportedError
from eagle3.text.prompts import Prompt, read_prompts
from eagle3.text.sets import SETS, read_set
from eagle3.train.data import DataOptions
from eagle3.train.data_answers import SELF
from eagle3.train.data_prompts import without_sampling
from eagle3.train.samples import META

# keys of the engine's that `data` stands in for
_STANDS_FOR = {"runtime.max_batch_size": "data.batch", "sampling.max_new_tokens": "data.max_new_tokens"}


def sourced(data: DataConfig) -> bool:
    """Whether a configuration says where prompts come from."""
    return bool(data.prompt_files or data.sets)


def lacking(cfg: EngineConfig) -> bool:
    """Whether data is to be made before a head can be trained. UnsupportedError where several ranks would make it."""
    if not sourced(cfg.data) or cfg.train.data is None or (Path(cfg.train.data) / META).exists():
        return False
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UnsupportedError(
            f"{cfg.train.data}: has no samples, and the ranks of torchrun make none: run 'eagle3 data' with the same "
            "configuration first"
        )
    return True


def data_options(cfg: EngineConfig) -> tuple[Path, DataOptions]:
    """The folder, and what is asked of whom, prompts read. Raises ConfigError with every fault in them."""
    data, problems = cfg.data, []
    if not cfg.train.data:
        message = "wants a folder for the samples: --out FOLDER or train.data=FOLDER"
        problems.append(Problem("train.data", message, cfg.train.data))
    if not sourced(data):
        message = "none is given: use --prompt-file FILE or --set NAME:COUNT, data.prompt_files or data.sets"
        problems.append(Problem("prompts", message, origin="command line"))
    sources = []
    for name in data.prompt_files:
        prompts = _read("data.prompt_files", name, _prompts_alone, problems)
        sources.append((name, prompts))
    others = [name for name in data.sets if name.partition(":")[0] != SELF]
    for name in others:
        sources.append((name, _read("data.sets", name, lambda name: read_set(name, data.seed), problems)))
    held = [_read("data.hold_out", name, lambda name: _held(name, data.seed), problems) for name in data.hold_out]
    if problems:
        raise ConfigError(problems)
    options = DataOptions(
        sources=tuple(sources),
        questions=sum(int(name.partition(":")[2]) for name in data.sets if name not in others),
        held=tuple(prompt for prompts in held for prompt in prompts),
        temperatures=tuple(data.temperatures),
        max_new_tokens=data.max_new_tokens,
        eval_share=data.eval_share,
        seed=data.seed,
        chat=data.chat,
        named=_named(data),
    )
    return Path(str(cfg.train.data)).absolute(), options


def _read(key: str, name: str, read: Callable[[str], Sequence[Prompt]], problems: list[Problem]) -> tuple[Prompt, ...]:
    """What `read` makes of a name; faults of the name itself are told under `key`, those of lines in it as they are."""
    try:
        return tuple(read(name))
    except ConfigError as error:
        for problem in error.problems:
            of_name = problem.origin in ("command line", "--prompt-file")
            problems.append(Problem(key, f"{name}: {problem.message}", name) if of_name else problem)
    return ()


def _prompts_alone(name: str) -> list[Prompt]:
    prompts = read_prompts(name)
    without_sampling(name, prompts)
    return prompts


def _held(name: str, seed: int) -> list[Prompt]:
    """The prompts of a set or of a file that must not be trained on."""
    is_set = name.partition(":")[0] in SETS or not Path(name).exists()
    return read_set(name, seed) if is_set else read_prompts(name)


def answering(composed: Composed, *, drafting: bool) -> Composed:
    """The configuration of the engine that answers: `data.batch` requests at once, no head if not `drafting`.

    Raises ConfigError where that breaks a rule, under the keys of `data` where those stand in for others.
    """
    cfg, data = composed.config, composed.config.data
    own = replace(
        cfg,
        draft=cfg.draft if drafting else DraftConfig(),
        spec=cfg.spec if drafting else SpecConfig(),
        runtime=replace(cfg.runtime, max_batch_size=data.batch or cfg.runtime.max_batch_size),
        sampling=replace(cfg.sampling, max_new_tokens=data.max_new_tokens),
    )

    def placed(problem: Problem) -> Problem:
        return composed.placed(replace(problem, key=_STANDS_FOR.get(problem.key, problem.key)))

    findings = rules.check(own, rules.Facts.of(own))
    if findings.errors:
        raise ConfigError([placed(problem) for problem in findings.errors])
    warnings = tuple(placed(problem) for problem in findings.warnings)
    return replace(composed, config=own, shape=DraftShape.resolve(own.spec), warnings=warnings)


def differences(meta: Mapping[str, Any], data: DataConfig) -> Iterator[str]:
    """What a configuration says otherwise than the data that is there; nothing where it names no prompts."""
    if sourced(data):
        for key, value in _told(data).items():
            if key in meta and meta[key] != value:
                yield f"data.{key} is {value}, the samples have {meta[key]}"


def release() -> None:
    """Give back what an engine had that nobody holds any more: its graphs and pools lie in cycles of references."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _named(data: DataConfig) -> dict[str, Any]:
    """What meta.json tells of the prompts beside their numbers."""
    return {key: getattr(data, key) for key in ("prompt_files", "sets", "hold_out", "chat")}


def _told(data: DataConfig) -> dict[str, Any]:
    """All that decides which samples there are."""
    return {key: value for key, value in asdict(data).items() if key != "batch"}
