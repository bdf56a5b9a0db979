"""A request's own sampling on top of the configuration's, under the same types and rules."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from omegaconf import OmegaConf

from eagle3.config.facts import Facts
from eagle3.config.rules import check
from eagle3.config.schema import EngineConfig, SamplingConfig
from eagle3.config.typed import typed
from eagle3.errors import ConfigError, Problem

_SECTION = "sampling."


def request_sampling(cfg: EngineConfig, values: Mapping[str, Any]) -> SamplingConfig:
    """`cfg.sampling` with `values` in place of some fields. Raises ConfigError with every fault in them."""
    merged = {"target": {"checkpoint": "given"}, "sampling": {**asdict(cfg.sampling), **values}}
    read, problems = typed(OmegaConf.create(merged))
    sampling = replace(read.sampling)
    if not problems:
        findings = check(replace(cfg, sampling=sampling), Facts.of(cfg))
        problems = [*findings.errors, *(problem for _, problem in findings.unsupported)]
    if own := [replace(p, key=p.key.removeprefix(_SECTION)) for p in problems if p.key.startswith(_SECTION)]:
        raise ConfigError(own)
    return sampling


def refused(error: ConfigError, where: str) -> list[Problem]:
    """The problems of a request, told with the place it came from."""
    return [replace(problem, origin=where) for problem in error.problems]
