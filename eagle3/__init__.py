"""eagle3: one YAML in, a running EAGLE-3 engine out.

import eagle3

engine = eagle3.load("smollm2", ["sampling.max_new_tokens=32"])
print(engine.generate(["Once upon a time"])[0].text)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3.engine.engine import Engine

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(conf: str = "smollm2", overrides: Sequence[str] = (), *, config_dir: Path | None = None) -> "Engine":
    """The engine of a shipped configuration, or of `conf/<name>.yaml` in your own `config_dir`, with Hydra overrides.

    Raises `errors.ConfigError` with every problem of the configuration, `errors.WeightError` where files are not what
    it says, `errors.UnsupportedError` where it asks for what is not built.
    """
    from eagle3.build.engine import build_engine
    from eagle3.config.load import compose

    return build_engine(compose([f"conf={conf}", *overrides], config_dir=config_dir))
