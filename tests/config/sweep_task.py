"""A task that launchers can import: no engine, a value that depends on the configuration."""

from eagle3.config.load import Composed


def page(composed: Composed) -> float:
    """The page size; 16 fails on purpose."""
    size = composed.config.kv.tokens_per_block
    if size == 16:
        raise ValueError("sixteen is not liked here")
    return float(size)
