"""One record of a benchmark, as JSON and as a table."""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import mean, median
from typing import Any

import torch
from rich.table import Table

import eagle3
from eagle3.bench.kernels import Timed
from eagle3.bench.run import Cell
from eagle3.bench.sections import Profile
from eagle3.bench.soak import Soak, total_throughput
from eagle3.bench.workload import Workload
from eagle3.config.results import Outcome
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
        "passes": len(cell.passes),
        "shape": asdict(cell.shape),
        "step_ms": cell.spread(lambda p: p.step_ms) if all(p.steps for p in cell.passes) else None,
        "output_throughput": throughput,
        **_times("ttft_ms", ttft),
        **_times("tpot_ms", tpot),
        "spec": asdict(spec) if spec else None,
        "speedup": None,
        "floor": None,
        "profile": None,
    }
    if cell.floor_ms is not None and record["step_ms"]:
        record["floor"] = {"ms": cell.floor_ms, "share": cell.floor_ms / record["step_ms"][1]}
    if cell.profile is not None:
        record["profile"] = profile_record(cell.profile, record["step_ms"] and record["step_ms"][1])
    if plain is not None and cell is not plain:
        record["speedup"] = {
            "output_throughput": throughput[1] / plain.spread(lambda p: p.output_throughput)[1],
            "tpot": median(t for p in plain.passes for t in p.tpot_ms) / median(tpot) if tpot else None,
        }
    return record


def profile_record(profile: Profile, step_ms: float | None) -> dict[str, Any]:
    """Sections as shares of the marked step, the host's gap as a share of the unmarked one, `step_ms`."""
    gap = profile.gap_ms
    return {
        "steps": profile.steps,
        "step_ms": step_ms,
        "total_ms": profile.total_ms,
        "sections": {
            section.value: {"ms": ms, "share": ms / profile.total_ms if profile.total_ms else None}
            for section, ms in profile.sections.items()
        },
        "host_gap": None if gap is None else {"ms": gap, "share": gap / step_ms if step_ms else None},
    }


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
    cfg: EngineConfig,
    overrides: Iterable[str],
    cells: Sequence[Cell],
    work: Workload,
    device: torch.device,
    *,
    stopped: bool = False,
) -> dict[str, Any]:
    """The whole benchmark, or what there is of one that was stopped."""
    plain = {c.batch: c for c in cells if c.arm == "plain"}
    return {
        "schema": SCHEMA,
        "hardware": hardware(device),
        "overrides": list(overrides),
        "prompts": {
            "source": cfg.bench.prompts or "given" if work.real else "random ids",
            "prompt_len": None if work.real else cfg.bench.prompt_len,
            "count": len(work.prompts),
            "sha256": work.sha256,
            "chat_template": work.chat,
        },
        "validity": {
            "warm": True,
            "ignore_eos": cfg.bench.ignore_eos,
            "rejection_sampling": cfg.spec.use_rejection_sampling,
            "acceptance_valid": work.real and cfg.spec.synthetic_acceptance is None,
        },
        "output_len": cfg.bench.output_len,
        "repeats": cfg.bench.repeats,
        "stopped_early": stopped,
        "cells": [cell_record(c, plain.get(c.batch)) for c in cells],
    }


def kernels_record(overrides: Iterable[str], times: Sequence[Timed], device: torch.device) -> dict[str, Any]:
    """Tree attention alone, an entry a batch size."""
    found = []
    for timed in times:
        load = timed.case.load()
        facts = asdict(timed.case) | {"dtype": str(timed.case.dtype).removeprefix("torch.")}
        floor = None if timed.floor_us is None else {"us": timed.floor_us, "share": timed.floor_us / timed.us}
        found.append({**facts, "bytes": load.bytes, "operations": load.operations, "us": timed.us, "floor": floor})
    told = {"schema": SCHEMA, "hardware": hardware(device), "overrides": list(overrides)}
    return {**told, "kernels": {"tree_attention": found}}


def soak_record(overrides: Iterable[str], soak: Soak, device: torch.device) -> dict[str, Any]:
    """Windows, and what they come to; null is unknown."""
    words = {True: "ok", False: "no", None: None}
    windows = [asdict(w) | {"output_throughput": w.output_throughput} for w in soak.windows]
    return {
        "schema": SCHEMA,
        "hardware": hardware(device),
        "overrides": list(overrides),
        "stopped_early": soak.stopped,
        "soak": {
            "windows": windows,
            "output_throughput": total_throughput(soak.windows),
            "pages": words[soak.pages],
            "slots": words[soak.slots],
            "memory": words[soak.memory],
            "drift": words[soak.drift],
            "step_ratio": soak.ratio,
            "pages_free": soak.pages_free,
            "pages_total": soak.pages_total,
            "slots_free": soak.slots_free,
            "slots_total": soak.slots_total,
        },
    }


def outcome(done: dict[str, Any], arm: str) -> Outcome:
    """What a sweep tells of a run: the arm's first cell."""
    cell = next(c for c in done["cells"] if c["arm"] == arm)
    spec, speedup, step = cell["spec"], cell["speedup"], cell["step_ms"]
    plain = next((c for c in done["cells"] if c["arm"] == "plain" and c["batch"] == cell["batch"]), None)
    least, median_, most = cell["output_throughput"]
    numbers = {
        "output_throughput": median_,
        "output_throughput_min": least,
        "output_throughput_max": most,
        "plain_output_throughput": plain and plain["output_throughput"][1],
        "passes": cell["passes"],
        "speedup": speedup and speedup["output_throughput"],
        "tau": spec and spec["mean_acceptance_length"],
        "step_ms": step and step[1],
    }
    return Outcome(median_, numbers, done["validity"]["acceptance_valid"])


def _early(done: dict[str, Any]) -> str:
    return ", stopped early" if done["stopped_early"] else ""


def table(done: dict[str, Any]) -> Table:
    """The record for people: a row a cell."""
    mark = "" if done["validity"]["acceptance_valid"] else " (not valid)"
    title = f"{done['hardware']['device']}, torch {done['hardware']['torch']}{_early(done)}"
    out = Table(title=title, title_justify="left")
    for name in (
        "batch",
        "arm",
        "step ms min / median / max",
        "floor ms (share)",
        "tok/s",
        "TTFT ms",
        "TPOT ms",
        "τ",
        "speed-up",
    ):
        out.add_column(name, justify="left" if name == "arm" else "right")
    for cell in done["cells"]:
        spec, speedup, step, floor = cell["spec"], cell["speedup"], cell["step_ms"], cell["floor"]
        tau = spec["mean_acceptance_length"] if spec else None
        out.add_row(
            str(cell["batch"]),
            cell["arm"],
            " / ".join(f"{t:.2f}" for t in step) if step else "–",
            f"{floor['ms']:.2f} ({floor['share']:.0%})" if floor else "–",
            f"{cell['output_throughput'][1]:.1f}",
            f"{cell['median_ttft_ms']:.1f}",
            f"{cell['median_tpot_ms']:.2f}" if cell["median_tpot_ms"] is not None else "–",
            f"{tau:.2f}{mark}" if tau else "–",
            f"{speedup['output_throughput']:.2f}×{mark}" if speedup else "–",
        )
    return out


def profile_table(done: dict[str, Any]) -> Table:
    """The steps in parts: a row a section of each cell that was profiled."""
    out = Table(title="where a step's time goes; marks cost time", title_justify="left")
    for name in ("batch", "arm", "section", "ms", "share"):
        out.add_column(name, justify="left" if name in ("arm", "section") else "right")
    for cell in done["cells"]:
        if (profile := cell["profile"]) is None:
            continue
        rows = [(name, part["ms"], part["share"]) for name, part in profile["sections"].items()]
        rows += [("marked step", profile["total_ms"], None), ("step without marks", profile["step_ms"], None)]
        if gap := profile["host_gap"]:
            rows.append(("host gap, of the step without marks", gap["ms"], gap["share"]))
        for name, ms, share in rows:
            numbers = "–" if ms is None else f"{ms:.3f}", "" if share is None else f"{share:.1%}"
            out.add_row(str(cell["batch"]), cell["arm"], name, *numbers)
        out.add_section()
    return out


def kernels_table(done: dict[str, Any]) -> Table:
    """The kernel's times: a row a batch size."""
    out = Table(title=f"tree attention of one layer, {done['hardware']['device']}", title_justify="left")
    for name in ("batch", "rows", "context", "page", "heads", "type", "median us", "floor us", "share"):
        out.add_column(name, justify="right")
    for row in done["kernels"]["tree_attention"]:
        floor, heads = row["floor"], f"{row['heads']} / {row['kv_heads']} × {row['head_dim']}"
        facts = (row["batch"], row["rows"], row["context"], row["page"], heads, row["dtype"], f"{row['us']:.1f}")
        out.add_row(*map(str, facts), *((f"{floor['us']:.1f}", f"{floor['share']:.0%}") if floor else "––"))
    return out


def soak_table(done: dict[str, Any]) -> Table:
    """The load over time: a row a window, and what came of it."""
    soak = done["soak"]
    told = ", ".join(f"{name} {soak[name] or '–'}" for name in ("pages", "slots", "memory", "drift"))
    ratio = "" if soak["step_ratio"] is None else f" (last step time over first: {soak['step_ratio']:.3f})"
    title = f"mixed load, {done['hardware']['device']}: {told}{ratio}{_early(done)}"
    out = Table(title=title, title_justify="left")
    names = ("s", "steps", "full", "full step ms", "tok/s", "finished", "aborted", "gave way", "pages free")
    for name in (*names, *(f"{what} MiB" for what in soak["windows"][0]["memory"])):
        out.add_column(name, justify="right")
    for w in soak["windows"]:
        step = "–" if w["step_ms"] is None else f"{w['step_ms']:.3f}"
        counts = (w["finished"], w["aborted"], w["preempted"])
        pages = " + ".join(f"{free}/{all_}" for free, all_ in zip(w["pages_free"], soak["pages_total"], strict=True))
        memory = (f"{size / 2**20:.1f}" for size in w["memory"].values())
        steps = (f"{w['seconds']:.1f}", str(w["steps"]), str(w["full_steps"]), step, f"{w['output_throughput']:.1f}")
        out.add_row(*steps, *map(str, counts), pages, *memory)
    return out
