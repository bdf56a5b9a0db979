"""One record of a benchmark, as JSON and as a table."""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import mean, median
from typing import Any

import torch
from rich.table import Table

import eagle3
from eagle3.bench.run import Cell
from eagle3.config.schema import EngineConfig

SCHEMA = "eagle3.bench/1"


def hardware(device: torch.device) -> dict[str, str]:
    """What the numbers belong to."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "eagle3": eagle3.__version__}
    if device.type == "cuda":
        import triton

        versions["triton"] = triton.__version__
    return {"device": name, "threads": str(torch.get_num_threads()), **versions}


def cell_record(cell: Cell, plain: Cell | None) -> dict[str, Any]:
    """One arm at one batch size. Three numbers are min, median and max over the scored passes; null is unknown."""
    spec = cell.acceptance
    ttft = [t for p in cell.passes for t in p.ttft_ms]
    tpot = [t for p in cell.passes for t in p.tpot_ms]
    throughput = cell.spread(lambda p: p.output_throughput)
    record: dict[str, Any] = {
        "arm": cell.arm,
        "batch": cell.batch,
        "shape": asdict(cell.shape),
        "step_ms": cell.spread(lambda p: p.step_ms) if all(p.steps for p in cell.passes) else None,
        "output_throughput": throughput,
        **_times("ttft_ms", ttft),
        **_times("tpot_ms", tpot),
        "spec": asdict(spec) if spec else None,
        "speedup": None,
    }
    if plain is not None and cell is not plain:
        record["speedup"] = {
            "output_throughput": throughput[1] / plain.spread(lambda p: p.output_throughput)[1],
            "tpot": median(t for p in plain.passes for t in p.tpot_ms) / median(tpot) if tpot else None,
        }
    return record


def _times(name: str, values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {f"mean_{name}": None, f"median_{name}": None, f"p95_{name}": None, f"p99_{name}": None}
    at = {p: torch.tensor(values, dtype=torch.float64).quantile(p / 100).item() for p in (95, 99)}
    return {
        f"mean_{name}": mean(values),
        f"median_{name}": median(values),
        f"p95_{name}": at[95],
        f"p99_{name}": at[99],
    }


def record(
    cfg: EngineConfig, overrides: Iterable[str], cells: Sequence[Cell], real: bool, device: torch.device
) -> dict[str, Any]:
    """The whole benchmark."""
    plain = {c.batch: c for c in cells if c.arm == "plain"}
    return {
        "schema": SCHEMA,
        "hardware": hardware(device),
        "overrides": list(overrides),
        "prompts": {"source": "given" if real else "random ids", "prompt_len": None if real else cfg.bench.prompt_len},
        "validity": {
            "warm": True,
            "ignore_eos": True,
            "acceptance_valid": real and cfg.spec.synthetic_acceptance is None,
        },
        "output_len": cfg.bench.output_len,
        "repeats": cfg.bench.repeats,
        "cells": [cell_record(c, plain.get(c.batch)) for c in cells],
    }


def table(done: dict[str, Any]) -> Table:
    """The record for people: a row a cell."""
    valid = done["validity"]["acceptance_valid"]
    out = Table(title=f"{done['hardware']['device']}, torch {done['hardware']['torch']}", title_justify="left")
    for name in ("batch", "arm", "step ms min / median / max", "tok/s", "TTFT ms", "TPOT ms", "τ", "speed-up"):
        out.add_column(name, justify="left" if name == "arm" else "right")
    for cell in done["cells"]:
        spec, speedup, step = cell["spec"], cell["speedup"], cell["step_ms"]
        tau = spec["mean_acceptance_length"] if spec else None
        out.add_row(
            str(cell["batch"]),
            cell["arm"],
            " / ".join(f"{t:.2f}" for t in step) if step else "–",
            f"{cell['output_throughput'][1]:.1f}",
            f"{cell['median_ttft_ms']:.1f}",
            f"{cell['median_tpot_ms']:.2f}" if cell["median_tpot_ms"] is not None else "–",
            f"{tau:.2f}{'' if valid else ' (not valid)'}" if tau else "–",
            f"{speedup['output_throughput']:.2f}×" if speedup else "–",
        )
    return out
