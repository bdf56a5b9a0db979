"""`eagle3 env`: what a report of a problem should carry."""

import json
import platform
from importlib import metadata

import typer

from eagle3.cli.options import Json
from eagle3.config.terminal import console

PACKAGES = ("torch", "triton", "transformers", "safetensors", "hydra-core", "omegaconf", "typer")


def version_of(package: str) -> str:
    """The installed version, or that there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def env(json_: Json = False) -> None:
    """Print versions and devices."""
    import torch

    found: dict[str, object] = {"eagle3": version_of("eagle3"), "python": platform.python_version()}
    found |= {package: version_of(package) for package in PACKAGES}
    found |= {"platform": platform.platform(), "cuda": torch.version.cuda, "threads": torch.get_num_threads()}
    devices = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} {facts.name}, {facts.total_memory / 2**30:.1f} GiB")
    found["devices"] = devices or ["cpu"]
    if json_:
        typer.echo(json.dumps(found, indent=2))
        return
    out = console(stderr=False)
    for name, value in found.items():
        text = ", ".join(value) if isinstance(value, list) else value
        out.print(f"{name:<14}{text}")
