"""A request's own sampling on top of the configuration's, under the same types and rules."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from omegaconf import OmegaConf

from eagle3.config.facts import Facts
from eagle3.config.rules_engine import REQUEST
from eagle3.config.schema import EngineConfig, SamplingConfig
from eagle3.config.support import unsupported
from eagle3.config.typed import Reader
from eagle3.errors import ConfigError, Problem

_SECTION = "sampling."
KNOWN = 1024  # kinds of sampling that are remembered


def request_sampling(cfg: EngineConfig, values: Mapping[str, Any]) -> SamplingConfig:
    """`cfg.sampling` with `values` in place of some fields. Raises ConfigError with every fault in them."""
    if not values:
        return cfg.sampling
    reader = Reader()
    read = reader.section(SamplingConfig, OmegaConf.create({**asdict(cfg.sampling), **values}), _SECTION)
    assert isinstance(read, SamplingConfig)
    problems = reader.problems
    if not problems:
        changed = replace(cfg, sampling=read)
        facts = Facts.of(changed)
        refused = (problem for _, problem in unsupported(changed) if problem.key.startswith(_SECTION))
        problems = [*chain.from_iterable(rule(changed, facts) for rule in REQUEST), *refused]
    if problems:
        raise ConfigError([replace(problem, key=problem.key.removeprefix(_SECTION)) for problem in problems])
    return read


class RequestSampling:
    """`request_sampling` for many requests: what differs from an earlier one by its seed alone is not checked again."""

    def __init__(self, cfg: EngineConfig) -> None:
        self._cfg = cfg
        self._known: dict[str, SamplingConfig] = {}  # by what was asked, but for the seed

    def __call__(self, values: Mapping[str, Any]) -> SamplingConfig:
        """As `request_sampling`."""
        asked = dict(values)
        seed = asked.pop("seed", self._cfg.sampling.seed)
        if type(seed) is not int or not 0 <= seed < 2**63:
            return request_sampling(self._cfg, values)
        name = repr(sorted(asked.items()))
        if name not in self._known:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[name] = request_sampling(self._cfg, asked)
        return replace(self._known[name], seed=seed)


def placed(error: ConfigError, where: str) -> list[Problem]:
    """The problems of a request, told with the place it came from."""
    return [replace(problem, origin=where) for problem in error.problems]
