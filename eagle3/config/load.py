"""From overrides to a judged configuration, or to a run of a task under Hydra."""

from eagle3.config.compose import Composed, compose, compose_dict
from eagle3.config.flags import HydraFlags
from eagle3.config.run import run, show

__all__ = ["Composed", "HydraFlags", "compose", "compose_dict", "run", "show"]
