"""Who set a key: the last override or file that touches it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from eagle3.config.session import RECIPES


@dataclass(frozen=True)
class Source:
    """A file or an override, and the dotted keys it sets."""

    label: str
    keys: frozenset[str]
    shipped: bool  # a file of ours, not the user's

    def touches(self, key: str) -> bool:
        """Whether it sets the key, a part of it, or a whole that it belongs to."""
        return any(own == key or own.startswith(key + ".") or key.startswith(own + ".") for own in self.keys)


@dataclass(frozen=True)
class Origins:
    """All sources, in the order in which they are merged."""

    sources: tuple[Source, ...] = ()

    def of(self, key: str) -> Source | None:
        """The last source that touches the key; None: a default."""
        return next((source for source in reversed(self.sources) if source.touches(key)), None)


def leaves(value: object, prefix: str) -> Iterator[str]:
    """Dotted keys of all leaves below `prefix`."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{prefix}.{name}" if prefix else str(name))
    elif prefix:
        yield prefix


def from_overrides(overrides: Sequence[Override]) -> Iterator[Source]:
    """Sources for overrides that set values; one that picks a file speaks through the file."""
    for override in overrides:
        value = None if override.is_sweep_override() else override.value()
        keys = frozenset(leaves(value, override.key_or_group.replace("/", ".")))
        yield Source(f"override {override.input_line}", keys, shipped=False)


def from_files(loader: ConfigLoaderImpl, config_name: str, overrides: Sequence[str]) -> Iterator[Source]:
    """Sources for the files that a configuration is made of."""
    _, repository = loader._parse_overrides_and_create_caching_repo(config_name, list(overrides))
    listed = loader.compute_defaults_list(config_name, list(overrides), RunMode.RUN)
    for default in listed.defaults:
        path = default.config_path
        loaded = None if path is None or path.startswith("hydra/") else repository.load_config(path)
        if loaded is None or path == "schema" or not isinstance(loaded.config, DictConfig):
            continue
        assert path is not None
        package = "" if default.package in (None, "_global_") else default.package
        keys = frozenset(leaves(OmegaConf.to_container(loaded.config), package))
        if loaded.provider == "main":
            yield Source(f"conf/{path}.yaml", keys, shipped=True)
        elif loaded.provider == RECIPES:
            yield Source(f"recipes/{path.removeprefix('recipe/')}.yaml", keys, shipped=True)
        else:
            yield Source(f"{str(loaded.path).removeprefix('file://')}/{path}.yaml", keys, shipped=False)
