"""Configurations with a few values changed: composed once, as composing takes time."""

from dataclasses import replace
from functools import cache

from eagle3.config.load import Composed, compose
from eagle3.config.shape import DraftShape


@cache
def _once(*overrides: str) -> Composed:
    return compose(overrides)


def changed(overrides: tuple[str, ...], **values: object) -> Composed:
    """What `overrides` compose to, with `spec__max_draft_len=3` for spec.max_draft_len. No rule judges the values."""
    made = _once(*overrides)
    config = made.config
    for key, value in values.items():
        section, name = key.split("__")
        config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
    return replace(made, config=config, shape=DraftShape.resolve(config.spec))
