"""Compose a configuration and judge it: every problem of every section at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from eagle3.config import rules
from eagle3.config.origins import Origins, from_files, from_overrides
from eagle3.config.overrides import admit, forced, parse, picks_file
from eagle3.config.schema import EngineConfig
from eagle3.config.session import loader_of, session
from eagle3.config.shape import DraftShape
from eagle3.config.support import BUILT
from eagle3.config.typed import typed
from eagle3.errors import ConfigError, Problem, UnsupportedError

FAULTS = (HydraException, OmegaConfBaseException, yaml.YAMLError)


@dataclass(frozen=True)
class Composed:
    """A configuration that breaks no rule, normalised."""

    config: EngineConfig
    shape: DraftShape
    warnings: tuple[Problem, ...] = ()
    not_runnable: tuple[str, ...] = ()  # features that a shipped file asks for and that are not built
    overrides: tuple[str, ...] = ()
    placed: Callable[[Problem], Problem] = field(default=lambda p: p, repr=False, compare=False)  # with its origin

    def require_runnable(self) -> None:
        """Raise UnsupportedError if it asks for something that is not built."""
        if self.not_runnable:
            raise UnsupportedError("not runnable yet: " + "; ".join(self.not_runnable))


def told(error: BaseException) -> str:
    """What a fault of Hydra's says, its cause included, on one line."""
    parts = [str(error)] + ([str(error.__cause__)] if error.__cause__ else [])
    lines = [line.strip() for part in parts for line in part.splitlines()]
    return "; ".join(
        line for line in lines if line and not line.startswith(("full_key", "reference_type", "object_type"))
    )


def compose(
    overrides: Sequence[str] = (),
    *,
    config_dir: Path | None = None,
    config_name: str = "config",
    built: frozenset[str] = BUILT,
) -> Composed:
    """Compose and judge; raise ConfigError with every problem of every section."""
    with session(config_dir) as hydra:
        loader = loader_of(hydra)
        parsed, problems = parse(overrides, loader)
        kept, more = admit(loader, parsed, sweep=False)
        cfg, kept, faults = _merge(hydra, config_name, kept)
        problems += more + faults
        if cfg is None:
            raise ConfigError(problems)
        HydraConfig.instance().set_config(cfg)  # so that ${hydra:…} resolves
        texts = [forced(loader, override, everywhere=True) for override in kept]

        @cache  # needed only where there is something to tell
        def origins() -> Origins:
            values = [override for override in kept if not picks_file(loader, override)]
            return Origins((*from_files(loader, config_name, texts), *from_overrides(values)))

        return _judge(cfg, origins, problems, overrides, built)


def compose_dict(cfg: DictConfig, overrides: Sequence[str], built: frozenset[str] = BUILT) -> Composed:
    """Judge what Hydra composed for a job; raise ConfigError.

    Inside a running job, files are known as origins too.
    """
    parsed, problems = parse(overrides)
    inside = GlobalHydra.instance().is_initialized() and HydraConfig.initialized()

    @cache
    def origins() -> Origins:
        if not inside:
            return Origins(tuple(from_overrides(parsed)))
        loader = loader_of(GlobalHydra.instance())
        values = [override for override in parsed if not picks_file(loader, override)]
        files = from_files(loader, str(HydraConfig.get().job.config_name), overrides)
        return Origins((*files, *from_overrides(values)))

    return _judge(cfg, origins, problems, overrides, built)


def _attempt(hydra: Hydra, config_name: str, overrides: Sequence[str]) -> DictConfig:
    return hydra.compose_config(config_name, list(overrides), RunMode.RUN, with_log_configuration=False)


def _merge(
    hydra: Hydra, config_name: str, overrides: Sequence[Override]
) -> tuple[DictConfig | None, list[Override], list[Problem]]:
    """What Hydra makes of the overrides; those that fail alone are left out and told."""
    loader = loader_of(hydra)
    texts = {id(override): forced(loader, override, everywhere=True) for override in overrides}
    try:
        return _attempt(hydra, config_name, list(texts.values())), list(overrides), []
    except FAULTS as error:
        whole = error
    kept, problems = [], []
    for override in overrides:
        try:
            _attempt(hydra, config_name, [texts[id(override)]])
            kept.append(override)
        except FAULTS as error:
            value = None if override.is_delete() else override.get_value_string()
            origin = f"override {override.input_line}"
            problems.append(Problem(override.key_or_group, told(error), value, origin))
    if len(kept) == len(overrides):  # each is fine alone
        return None, kept, [Problem("overrides" if kept else config_name, told(whole))]
    try:
        return _attempt(hydra, config_name, [texts[id(override)] for override in kept]), kept, problems
    except FAULTS as error:
        message = told(error)
        if all(problem.message != message for problem in problems):
            problems.append(Problem(config_name, message))
        return None, kept, problems


def _judge(
    cfg: DictConfig,
    origins: Callable[[], Origins],
    problems: Sequence[Problem],
    overrides: Sequence[str],
    built: frozenset[str],
) -> Composed:
    config, faults = typed(cfg)
    findings = rules.check(config, rules.Facts.of(config), built)
    told_keys = {problem.key for problem in (*problems, *faults)}

    def placed(problem: Problem) -> Problem:
        if problem.origin:
            return problem
        source = origins().of(problem.key)
        return replace(problem, origin=source.label if source else None)

    errors = [*problems, *map(placed, faults)]
    errors += [placed(problem) for problem in findings.errors if problem.key not in told_keys]
    missing: list[str] = []
    for feature, problem in findings.unsupported:
        source = origins().of(problem.key)
        if source is not None and source.shipped:
            missing.append(f"{feature} ({problem.key}, {source.label})")
        elif problem.key not in told_keys:
            errors.append(placed(problem))
    if errors:
        raise ConfigError(errors)
    config = rules.normalise(config)
    warnings = tuple(map(placed, findings.warnings))
    return Composed(config, DraftShape.resolve(config.spec), warnings, tuple(missing), tuple(overrides), placed)
