"""A task that launchers can import: no engine, a value that depends on the configuration."""

import os

from eagle3.config.load import Composed


def page(composed: Composed) -> float:
    """The page size; 16 fails on purpose."""
    size = composed.config.kv.tokens_per_block
    if size == 16:
        raise ValueError("sixteen is not liked here")
    return float(size)


def gpu(_: Composed) -> float:
    """The one GPU that a job sees."""
    return float(os.environ["CUDA_VISIBLE_DEVICES"])
