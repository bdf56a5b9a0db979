"""Hydra over the shipped `conf/` and `recipes/`, and the user's own folder before them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import MISSING as REQUIRED
from omegaconf import OmegaConf

from eagle3.config.schema import EngineConfig
from eagle3.errors import ConfigError, Problem

RECIPES = "recipes"  # the provider's name, by which origins know them


def shipped(name: str) -> Path:
    """The folder `conf` or `recipes`: inside the installed package, else at the checkout's root."""
    package = Path(__file__).resolve().parent.parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def defaults(section: type) -> dict[str, Any]:
    """A section's fields with their defaults as plain values, `???` where the user must give one.

    Hydra composes over these, so that it knows every key; types are left to `typed`, which tells all faults.
    """
    plain: dict[str, Any] = {}
    for field in fields(section):
        value = field.default if field.default_factory is MISSING else field.default_factory()
        if is_dataclass(value) and not isinstance(value, type):
            plain[field.name] = defaults(type(value))
        else:
            plain[field.name] = value.value if isinstance(value, Enum) else value
            assert value is not MISSING or field.default is REQUIRED
    return plain


class OwnFiles(SearchPathPlugin):
    """Puts the user's folder before the shipped one."""

    folder: ClassVar[Path | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Hydra calls this whenever it makes a search path."""
        if OwnFiles.folder is not None:
            search_path.prepend("command-line", f"file://{OwnFiles.folder}", SearchPathQuery("main", None))


@cache  # parsing the recipes costs more than composing; Hydra hands out copies
def _store() -> None:
    store = ConfigStore.instance()
    store.store(name="schema", node=defaults(EngineConfig), provider="eagle3")
    for path in sorted(shipped("recipes").glob("*.yaml")):
        recipe = OmegaConf.load(path)
        store.store(name=path.stem, group="recipe", package="_global_", node=recipe, provider=RECIPES)


def folder_with(group: str, name: str) -> Path | None:
    """The folder above, or one below, the user's (or the one we are in) that would bring the choice group=name."""
    here = OwnFiles.folder or Path.cwd()
    inner: list[Path] = []
    with suppress(OSError):
        inner = sorted(here.iterdir())
    for folder in (here, here.parent, *inner):
        with suppress(OSError):  # one that may not be looked into
            if (folder / group / f"{name}.yaml").is_file():
                return folder
    return None


def loader_of(holder: Hydra | GlobalHydra) -> ConfigLoaderImpl:
    """The loader, which knows groups and files."""
    loader = holder.config_loader if isinstance(holder, Hydra) else holder.config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    return loader


@contextmanager
def session(config_dir: Path | None = None) -> Iterator[Hydra]:
    """A Hydra that finds all configs. May be opened inside a running job, whose Hydra then comes back."""
    if config_dir is not None and not config_dir.is_dir():
        message = "a folder that exists is needed"
        raise ConfigError([Problem("--config-dir", message, str(config_dir), "command line")])
    _store()
    Plugins.instance().register(OwnFiles)
    outer, outer_config = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    GlobalHydra.instance().clear()
    OwnFiles.folder = config_dir.resolve() if config_dir else None
    try:
        with initialize_config_dir(str(shipped("conf")), job_name="eagle3", version_base="1.3"):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            yield hydra
    finally:
        OwnFiles.folder = None
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = outer, outer_config
