"""A task that launchers can import: no engine, a value that depends on the configuration."""

import os

from eagle3.config.load import Composed
from eagle3.config.results import Outcome
from eagle3.errors import ConfigError, Problem


def page(composed: Composed) -> Outcome:
    """The page size, and numbers made of it; 16 and 128 fail on purpose."""
    size = composed.config.kv.tokens_per_block
    if size == 16:
        raise ValueError("sixteen is not liked here")
    if size == 128:
        raise ConfigError([Problem("kv.tokens_per_block", "does not fit what is there", size)])
    return Outcome(float(size), {"output_throughput": float(size), "tau": size / 4})


def gpu(_: Composed) -> float:
    """The one GPU that a job sees."""
    return float(os.environ["CUDA_VISIBLE_DEVICES"])
