"""Whether a checkpoint's files are on this machine already."""

from pathlib import Path

from eagle3.config.files import HUB, IN_THE_BOX, PYPI, cache_folder, read_json
from eagle3.errors import WeightError
from eagle3.models.checkpoint import converted, has_weights, resolve


def located(checkpoint: str, *, revision: str | None = None, sha256: str | None = None) -> Path | None:
    """The folder of `checkpoint` if all of its files are here; nothing is fetched or made.

    Raises WeightError for a folder that is here and no checkpoint, a file, and a name that no hub would take.
    """
    if checkpoint.startswith("pypi:"):
        match = PYPI.fullmatch(checkpoint)
        if match is None:
            return None
        folder = converted(match[1], match[2], sha256 or "", cache_folder())
        return folder if has_weights(folder) else None
    try:
        here = checkpoint.startswith(IN_THE_BOX) or Path(checkpoint).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # no such user in ~user, too long a name
        return None
    if here:
        return resolve(checkpoint)
    return _in_hub_cache(checkpoint, revision) if HUB.fullmatch(checkpoint) else None


def _in_hub_cache(repo: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repo, "config.json", revision=revision)
    except HFValidationError as fault:
        raise WeightError(f"{repo}: {fault}") from fault
    folder = Path(config).parent if isinstance(config, str) else None
    return folder if folder is not None and has_weights(folder) and _whole(folder) else None


def _whole(folder: Path) -> bool:
    """Whether all files that an index names are there: a download may have been interrupted."""
    for index in folder.glob("*.index.json"):
        try:
            names = set(read_json(index)["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            continue  # told by what reads it next
        if not all((folder / name).is_file() for name in names):
            return False
    return True
