"""A target's config.json as a file: looked at before transformers reads it."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from eagle3.config.facts import NEEDED
from eagle3.config.files import read_json
from eagle3.config.rules_model import MOST, MOST_LAYERS
from eagle3.errors import UnsupportedError, WeightError
from eagle3.models.families import FAMILIES
from eagle3.models.lfs import require_content
from eagle3.nn.rope import require_known

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_LEAST = tuple(key for key in NEEDED if key != "max_position_embeddings")  # transformers has defaults for them


def _is_type(name: str) -> bool:
    """Whether torch has such a type."""
    return isinstance(getattr(torch, name, None), torch.dtype)


def read_config(folder: Path) -> "PretrainedConfig":
    """What transformers makes of it; WeightError where it cannot be read, UnsupportedError for an unknown model."""
    if not (folder / "config.json").is_file():
        raise WeightError(f"{folder} has no config.json")
    _require_sound(folder / "config.json")
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, PretrainedConfig  # here, as it takes seconds

    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        return config
    except (OSError, LookupError, TypeError, ArithmeticError, StrictDataclassError) as fault:
        raise WeightError(f"{folder / 'config.json'} cannot be read: {fault}") from fault
    except ValueError as fault:
        raise UnsupportedError(f"{folder / 'config.json'}: {fault}") from fault


def _require_sound(file: Path) -> None:
    """Sizes and rope that can be, before transformers reads the file: it would compute with them, or print a line.

    What a model of ours must say is there: transformers would make it up.
    """
    require_content(file)
    try:
        raw = read_json(file)
    except (OSError, ValueError) as fault:
        raise WeightError(f"{file} cannot be read: {fault}") from fault
    if not isinstance(raw, dict):
        raise WeightError(f"{file} must hold an object")
    names = raw.get("architectures")
    ours = not names or (isinstance(names, list) and names[0] in tuple(FAMILIES))
    if ours and (lacking := [key for key in ("architectures", *_LEAST) if raw.get(key) is None]):
        raise WeightError(f"{file} lacks {', '.join(lacking)}")
    for key in (*NEEDED, "num_key_value_heads", "head_dim"):
        value, most = raw.get(key), MOST_LAYERS if key == "num_hidden_layers" else MOST
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise WeightError(f"{file}: {key} is {value!r}, must be an integer from 1 to {most}")
    eps = raw.get("rms_norm_eps", 1e-6)
    if type(eps) not in (int, float) or not 0 < eps < 1:
        raise WeightError(f"{file}: rms_norm_eps is {eps!r}, must be a small positive number")
    key = "torch_dtype" if raw.get("dtype") is None else "dtype"
    name = raw.get(key)
    if not (isinstance(name, dict) or name is None or (isinstance(name, str) and _is_type(name))):
        raise WeightError(f"{file}: {key} is {name!r}, must be a type of torch's, such as bfloat16")
    for key in ("rope_parameters", "rope_scaling"):
        given = raw.get(key)
        if isinstance(given, dict):
            require_known(given.get("rope_type") or given.get("type") or "default")
