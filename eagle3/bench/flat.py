"""One record of a benchmark, flat: a row a cell with every number, for CSV."""

from dataclasses import fields
from typing import Any

from eagle3.bench.sections import Section
from eagle3.engine.stats import SpecMetrics


def flat(done: dict[str, Any]) -> tuple[list[str], list[list[object]]]:
    """The head, the same for all records, and a row a cell with all numbers; None is unknown, lists go by spaces."""
    rows = [_facts(done) | _numbers(cell) for cell in done["cells"]]
    return list(rows[0]), [[_word(value) for value in row.values()] for row in rows]


def _word(value: object) -> object:
    return " ".join(str(one) for one in value if one is not None) if isinstance(value, list) else value


def _facts(done: dict[str, Any]) -> dict[str, object]:
    asked = ("source", "prompt_len", "count", "chat_template")
    return {
        "device": done["hardware"]["device"],
        "torch": done["hardware"]["torch"],
        "overrides": done["overrides"],
        **{f"prompts_{name}": done["prompts"][name] for name in asked},
        **done["validity"],
        "output_len": done["output_len"],
        "repeats": done["repeats"],
        "stopped_early": done["stopped_early"],
    }


def _numbers(cell: dict[str, Any]) -> dict[str, object]:
    row = {"batch": cell["batch"], "arm": cell["arm"], "passes": cell["passes"], **cell["shape"]}
    for name in ("step_ms", "output_throughput"):
        three = cell[name] or (None, None, None)
        row |= {f"{name}_{which}": value for which, value in zip(("min", "median", "max"), three, strict=True)}
    times = [f"{which}_{name}" for name in ("ttft_ms", "tpot_ms") for which in ("mean", "median", "p95", "p99")]
    row |= {name: cell[name] for name in times}
    spec, speedup, floor = cell["spec"] or {}, cell["speedup"] or {}, cell["floor"] or {}
    apart = ("acceptance_valid", "accepted_per_step")  # the record's own, and one request's
    row |= {f.name: spec.get(f.name) for f in fields(SpecMetrics) if f.name not in apart}
    row |= {f"speedup_{name}": speedup.get(name) for name in ("output_throughput", "tpot")}
    row |= {f"floor_{name}": floor.get(name) for name in ("ms", "share")}
    profile = cell["profile"] or {}
    row |= {f"profile_{name}": profile.get(name) for name in ("steps", "total_ms")}
    parts = {section.value: profile.get("sections", {}).get(section.value) for section in Section}
    for name, part in (parts | {"host gap": profile.get("host_gap")}).items():
        row |= {f"profile_{name.replace(' ', '_')}_{unit}": part and part[unit] for unit in ("ms", "share")}
    return row
