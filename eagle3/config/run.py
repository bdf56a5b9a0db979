"""Run a task under Hydra, once or over a sweep, with Hydra's own launchers, sweepers, folders and logging."""

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO, cast

from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from eagle3.config import ahead, results
from eagle3.config.compose import FAULTS, Composed, compose, compose_dict, told
from eagle3.config.files import read_json, write_whole
from eagle3.config.flags import HydraFlags
from eagle3.config.overrides import admit, forced, parse
from eagle3.config.results import Outcome, Result, Stopped, Tell
from eagle3.config.session import loader_of, session
from eagle3.errors import ConfigError, Eagle3Error, Problem

Task = Callable[[Composed], Outcome | float | None]
HYDRAS = (*FAULTS, AssertionError, AttributeError, TypeError, ValueError)  # what it makes of wrong settings of its own
log = logging.getLogger(__name__)


class JobFailed(Eagle3Error):
    """A job of a sweep failed; its result file says how."""


def run(
    task: Task,
    flags: HydraFlags,
    overrides: Sequence[str],
    tell: Tell = results.print_table,
    look: ahead.Look = lambda _: (),
) -> int:
    """Show what `flags` ask for, or run `task`; the exit code: 0 done, 1 a job of a sweep failed.

    `task` is importable and picklable, for launchers that start processes; `tell` gets a sweep's results, as the
    jobs came. `look` finds what is wrong with a job beside its configuration, before the first one starts. Raises
    ConfigError, of a sweep with the problems of all jobs, and what the task of a single run raises.
    """
    name, texts = flags.config_name, list(overrides)
    try:
        if show(flags, texts):
            return 0
        with session(flags.config_dir) as hydra:
            parsed, problems = parse(texts, loader_of(hydra))
            if _sweeps(hydra, flags, texts):
                kept, more = admit(loader_of(hydra), parsed, sweep=True)
                texts = [forced(loader_of(hydra), override, everywhere=False) for override in kept]
                return _sweep(hydra, Sweep(task, tell, look), name, texts, [*problems, *more])
        compose(texts, config_dir=flags.config_dir, config_name=name)  # all problems, before any folder is made
        with session(flags.config_dir) as hydra:
            texts = [forced(loader_of(hydra), override, everywhere=False) for override in parsed]
            with _folder("hydra.run.dir", texts):
                job = hydra.run(name, partial(_once, task), texts)
            failed = job.return_value  # raises what the task raised
    except FAULTS as error:
        raise ConfigError([Problem(name, told(error))]) from error
    if failed is not None:
        raise failed
    return 0


def _sweeps(hydra: Hydra, flags: HydraFlags, texts: list[str]) -> bool:
    """Whether -m asks for a sweep, or hydra.mode, which what ships leaves alone: then a composition is spared."""
    own = flags.config_dir is not None or any("hydra" in text for text in texts)
    return flags.multirun or (own and hydra.get_mode(flags.config_name, texts) is RunMode.MULTIRUN)


@contextmanager
def _folder(key: str, overrides: Sequence[str]) -> Iterator[None]:
    """Tell of a folder for outputs that cannot be made. What a task raises does not pass here: Hydra keeps it."""
    try:
        yield
    except OSError as error:
        origin = next((f"override {text}" for text in overrides if text.partition("=")[0] == key), None)
        message = f"the folder for outputs cannot be used: {error}"
        raise ConfigError([Problem(key, message, error.filename, origin)]) from error


def show(flags: HydraFlags, overrides: Sequence[str]) -> bool:
    """Print what `--cfg` or `--info` ask for; False if neither was given."""
    if flags.info is None and flags.cfg is None:
        return False
    try:
        with session(flags.config_dir) as hydra:
            _show(hydra, flags, list(overrides))
    except FAULTS as error:
        raise ConfigError([Problem(flags.config_name, told(error))]) from error
    return True


def _show(hydra: Hydra, flags: HydraFlags, overrides: list[str]) -> None:
    package = flags.package or "_global_"
    if flags.info is not None:
        hydra.show_info(flags.info, flags.config_name, overrides)
    elif flags.cfg is not None:
        hydra.show_cfg(flags.config_name, overrides, flags.cfg, package, flags.resolve)


@dataclass(frozen=True)
class _End:
    """What became of a task."""

    outcome: Outcome | float | None = None
    load: dict[str, str] = field(default_factory=dict)
    error: BaseException | None = None  # what ended it before its time

    def leave(self, swept: Sequence[str] = ()) -> Result:
        """Write result.json into the folder of the run, one of a sweep over the keys `swept`; what it holds."""
        job = HydraConfig.get()
        stopped = isinstance(self.error, KeyboardInterrupt)
        failure = None if self.error is None or stopped else f"{type(self.error).__name__}: {self.error}"
        result = {
            "status": "failed" if failure else "stopped" if stopped else "done",
            "overrides": list(job.overrides.task),
            "swept": list(swept),
            "choices": {group: name for group, name in job.runtime.choices.items() if not group.startswith("hydra/")},
            "load": self.load,
            **results.told(self.outcome),
            "error": failure,
        }
        file = Path(job.runtime.output_dir) / "result.json"
        try:
            if file.exists() and not _ours(file):
                log.warning("%s is kept: it is no result of a run", file)
            else:
                write_whole(file, json.dumps(result, indent=2) + "\n")
        except OSError as fault:
            log.warning("%s cannot be written: %s", file, fault)
        return result


def _ours(file: Path) -> bool:
    """Whether a file was left by a run."""
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"status", "overrides", "numbers"} <= found.keys()


def _ended(task: Task, cfg: DictConfig, running: Mapping[str, str] | None = None) -> _End:
    """Run a task to its end, whatever that is. `running` is what a sweep runs by: a swept file cannot change it."""
    job, load = HydraConfig.get(), dict[str, str]()
    try:
        if running and (problems := list(ahead.late(running, job.runtime.choices))):  # where it was not judged ahead
            raise ConfigError(problems)
        composed = compose_dict(cfg, list(job.overrides.task))
        load = results.load(composed.config)
        return _End(_placed(task, composed), load)
    except KeyboardInterrupt as stop:
        return _End(stop.outcome if isinstance(stop, Stopped) else None, load, stop)
    except Exception as error:  # the border of a run: a sweep goes on, the file says what happened
        return _End(None, load, error)


def _once(task: Task, cfg: DictConfig) -> Eagle3Error | None:
    """A single run. Errors of ours are handed back as a value, so that Hydra prints no trace of them."""
    end = _ended(task, cfg)
    end.leave()
    if end.error is None or isinstance(end.error, Eagle3Error):
        return end.error
    raise end.error


def _placed(task: Task, composed: Composed) -> Outcome | float | None:
    """Run a task; problems that it finds in the configuration are told with who set the key, as a rule's are."""
    try:
        return task(composed)
    except ConfigError as error:
        raise ConfigError([composed.placed(problem) for problem in error.problems]) from error


def _job(task: Task, index: Path, running: dict[str, str], swept: list[str], cfg: DictConfig) -> float | None:
    """A sweep's job: leaves result.json in its folder, and a copy in `index`, whatever happens."""
    end, job = _ended(task, cfg, running), HydraConfig.get()
    result = end.leave(swept)
    (index / f"{job.job.num}.json").write_text(json.dumps(result | {"folder": job.runtime.output_dir}))
    if isinstance(end.error, KeyboardInterrupt):
        raise end.error
    if end.error is not None:
        log.error(result["error"], exc_info=None if isinstance(end.error, Eagle3Error) else end.error)
        raise JobFailed(result["error"])
    return end.outcome.value if isinstance(end.outcome, Outcome) else end.outcome


@dataclass(frozen=True)
class Sweep:
    """What a sweep's jobs do, who is told what they came to, and what is looked at before."""

    task: Task
    tell: Tell
    look: ahead.Look


def _sweep(hydra: Hydra, sweep: Sweep, config_name: str, overrides: list[str], problems: Sequence[Problem]) -> int:
    overrides = [*overrides, "hydra.mode=MULTIRUN"]
    try:
        whole = hydra.compose_config(config_name, overrides, RunMode.MULTIRUN, with_log_configuration=False)
        jobs = ahead.jobs_of(loader_of(hydra), whole)
    except HYDRAS as error:
        raise ConfigError([*problems, _hydras(config_name, error)]) from error
    ahead.judge(loader_of(hydra), whole, jobs, sweep.look, problems)
    with tempfile.TemporaryDirectory(prefix="eagle3-sweep-") as folder:
        index, failed = Path(folder), False
        running = ahead.chosen(whole.hydra.runtime.choices)
        try:
            with _folder("hydra.sweep.dir", overrides), redirect_stderr(cast(TextIO, _Quiet(sys.stderr))):
                hydra.multirun(
                    config_name, partial(_job, sweep.task, index, running, results.varied(jobs or [])), overrides
                )
        except JobFailed:
            failed = True
        except HYDRAS as error:  # a job's own never come here
            raise ConfigError([_hydras("hydra", error)]) from error
        finally:
            files = sorted(index.glob("*.json"), key=lambda path: int(path.stem))
            found = [json.loads(path.read_text()) for path in files]
            if found:
                sweep.tell(found)
    return int(failed or any(result["status"] == "failed" for result in found))


def _hydras(key: str, error: BaseException) -> Problem:
    """What Hydra cannot do, which it says well of configurations, and of settings of its own hardly."""
    if isinstance(error, FAULTS):
        return Problem(key, told(error))
    said = told(error) or "no reason is given"
    return Problem("hydra", f"Hydra cannot run this with its settings (hydra.…): {type(error).__name__}, {said}")


def heading() -> str | None:
    """The number and the overrides of the sweep's job that runs; None in a single run."""
    job = HydraConfig.get()
    if job.mode is not RunMode.MULTIRUN:
        return None
    return f"job {job.job.num}: {' '.join(text.lstrip('+') for text in job.overrides.task)}"


class _Quiet:
    """stderr without the line that Hydra writes of a job that failed: the sweep's table tells of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if text.startswith("Error executing job with overrides: ") else self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
