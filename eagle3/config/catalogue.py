"""What there is to choose from: engines, the choices of each group, recipes; each with its first comment."""

from dataclasses import dataclass
from pathlib import Path

from hydra.core.object_type import ObjectType

from eagle3.config.session import loader_of, session, shipped

# what a shipped engine that is a template must be given before it composes
TEMPLATES = {"base": ("target.checkpoint=organisation/model",)}


@dataclass(frozen=True)
class Entry:
    """One choice: `group=name`."""

    group: str  # conf: a whole engine; recipe: an experiment
    name: str
    about: str


def first_comment(path: Path) -> str:
    """The first comment of a file that is not a directive to Hydra."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @"):
            return line.lstrip("# ").strip()
    return ""


def catalogue(config_dir: Path | None = None) -> list[Entry]:
    """Every choice of every group, engines first, recipes last, those of the user's folder among them."""
    entries = []
    with session(config_dir) as hydra:
        loader = loader_of(hydra)
        groups = [group for group in loader.list_groups("") if group not in ("hydra", "conf", "recipe")]
        folders = [folder for folder in (config_dir, shipped("conf")) if folder]
        for group in ("conf", *sorted(groups), "recipe"):
            for name in loader.repository.get_group_options(group, ObjectType.CONFIG):
                places = [folder / group / f"{name}.yaml" for folder in folders]
                places.append(shipped("recipes") / f"{name}.yaml")
                path = next(place for place in places if place.is_file())
                entries.append(Entry(group, name, first_comment(path)))
    return entries
