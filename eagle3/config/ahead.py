"""A sweep's configurations, judged before its first job starts."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from eagle3.config.compose import FAULTS, Composed, compose_dict, told
from eagle3.errors import ConfigError, Problem

Look = Callable[[Composed], Sequence[Problem]]  # what is wrong with a job beside its configuration
MOST = 64  # jobs that are judged ahead: composing one takes a fifth of a second
log = logging.getLogger(__name__)


def jobs_of(loader: ConfigLoaderImpl, whole: DictConfig) -> list[list[str]] | None:
    """The overrides of each job, as Hydra's own sweeper splits them; None with one that chooses as it goes."""
    sweeper = whole.hydra.sweeper
    if sweeper._target_ != BasicSweeperConf._target_:
        return None
    texts = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    texts += cast(list[str], OmegaConf.to_container(whole.hydra.overrides.task, resolve=False))
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(texts)
    batches = BasicSweeper.split_arguments(parsed, sweeper.max_batch_size)
    return [job for batch in batches for job in batch]


def judge(
    loader: ConfigLoaderImpl,
    whole: DictConfig,
    jobs: Sequence[list[str]] | None,
    look: Look,
    known: Sequence[Problem] = (),
) -> None:
    """Raise ConfigError with what is `known` and the problems of the `jobs` of the sweep `whole`, each told once.

    Of more than MOST only the first are judged; None where the sweeper chooses them as it goes. `look` finds what
    is wrong with a job whose configuration is sound.
    """
    jobs = jobs or []
    if len(jobs) > MOST:
        log.warning("of %d jobs the first %d are judged ahead, the others as they start", len(jobs), MOST)
        jobs = jobs[:MOST]
    found: dict[str, tuple[Problem, list[int]]] = {}
    for number, overrides in enumerate(jobs):
        for problem in _problems(loader, whole, number, overrides, look):
            found.setdefault(repr(problem), (problem, []))[1].append(number)
    if known or found:
        raise ConfigError([*known, *(blamed(problem, numbers, jobs) for problem, numbers in found.values())])


def _problems(
    loader: ConfigLoaderImpl,
    whole: DictConfig,
    number: int,
    overrides: list[str],
    look: Look,
) -> Sequence[Problem]:
    try:
        cfg = loader.load_sweep_config(whole, overrides)
        with open_dict(cfg):  # what a launcher knows of the job
            cfg.hydra.job.id = cfg.hydra.job.num = number
            cfg.hydra.runtime.output_dir = str(Path(cfg.hydra.sweep.dir, cfg.hydra.sweep.subdir).absolute())
        HydraConfig.instance().set_config(cfg)
        if problems := list(late(chosen(whole.hydra.runtime.choices), cfg.hydra.runtime.choices)):
            return problems
        composed = compose_dict(cfg, overrides)
        if cfg.hydra.job.chdir:  # what it names is looked for in a folder that is not there yet
            return ()
        return [composed.placed(problem) for problem in look(composed)]
    except FAULTS as error:
        return [Problem(str(whole.hydra.job.config_name), told(error), None, "the overrides")]
    except ConfigError as error:
        return error.problems


def blamed(problem: Problem, numbers: Sequence[int], jobs: Sequence[Sequence[str]]) -> Problem:
    """A problem of the jobs `numbers`, with what they have and others have not, unless its origin is just that."""
    if len(numbers) == len(jobs):
        return problem
    shared = set(jobs[0]).intersection(*jobs)
    own = set(jobs[numbers[0]]).intersection(*(jobs[number] for number in numbers)) - shared
    makers = [text for text in jobs[numbers[0]] if text in (own or set(jobs[numbers[0]]) - shared)]
    if problem.origin == f"override {' '.join(makers)}":
        return problem
    return replace(problem, origin=f"{problem.origin or 'the defaults'}, with {' '.join(makers)}")


def chosen(choices: Mapping[str, Any]) -> dict[str, str]:
    """Who starts the jobs of a sweep, and who chooses their values."""
    return {group: str(choices[group]) for group in ("hydra/launcher", "hydra/sweeper")}


def late(running: Mapping[str, str], choices: Mapping[str, Any]) -> Iterator[Problem]:
    """What the `choices` of a job ask for and the sweep that is `running` no longer heeds."""
    for group, name in chosen(choices).items():
        if name != running[group]:
            message = "comes too late in a file that is swept: choose it on the command line"
            yield Problem(group, message, name, "a file that is swept")
