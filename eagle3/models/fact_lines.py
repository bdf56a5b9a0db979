"""Two descriptions of one model held against each other, told as a config.json spells them."""

import json
from collections.abc import Mapping
from math import isclose

from eagle3.nn.rope import RopeFacts


def differing(pairs: Mapping[str, tuple[object, object]]) -> list[str]:
    """One line for every key whose two values differ: the first is here, the second there."""
    lines = []
    for key, (here, there) in pairs.items():
        close = isinstance(here, float) and isinstance(there, float) and isclose(here, there, rel_tol=1e-6)
        if here != there and not close:
            lines.append(f"{key}: {json.dumps(here, default=str)} here, {json.dumps(there, default=str)} there")
    return lines


def rope_pairs(here: RopeFacts, there: RopeFacts) -> dict[str, tuple[object, object]]:
    """What two say of their positions, for `differing`."""
    return {
        "rope_theta": (here.theta, there.theta),
        "rope_scaling": (here.scaling, there.scaling),
        "max_position_embeddings": (here.max_position_embeddings, there.max_position_embeddings),
    }
