"""A head's config.json as a file, and the target layers that it reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.config.files import read_json
from eagle3.config.schema import LayerIds
from eagle3.config.shape import default_capture
from eagle3.errors import ConfigError, Problem, UnsupportedError, WeightError
from eagle3.models.lfs import require_content

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
CONVENTION = "layer_ids_convention"  # of our own heads: whether that list means outputs or inputs
NESTED, LAYER = "eagle_config", "transformer_layer_config"
NO_AUX = "use_aux_hidden_state"  # false: the head reads the final norm's output alone
_USER_LAYERS = "spec.layers_to_capture"
_MODELOPT = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm")  # keys of no one else


def read_head_config(folder: Path) -> dict[str, Any]:
    """config.json of a head; WeightError where it cannot be read."""
    file = folder / "config.json"
    require_content(file)
    try:
        config = read_json(file)
    except FileNotFoundError as fault:
        raise WeightError(f"{folder} has no config.json") from fault
    except (OSError, ValueError) as fault:
        raise WeightError(f"{file} cannot be read: {fault}") from fault
    if not isinstance(config, dict) or not isinstance(config.get("eagle_config") or {}, dict):
        raise WeightError(f"{file} must hold an object, and so must its eagle_config")
    return config


def is_speculators(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of the format of speculators."""
    return any(key in config for key in ("speculators_config", "speculators_model_type", LAYER))


def listed_layers(config: Mapping[str, Any]) -> list[int] | None:
    """A head's own list of layers, the one at the top first; None where there is none."""
    listed = config.get(LAYER_IDS)
    listed = (config.get(NESTED) or {}).get(LAYER_IDS) if listed is None else listed
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(type(i) is int for i in listed):
        raise WeightError(f"{LAYER_IDS} must be a list of integers, not {listed!r}")
    return listed


def names_layers(config: Mapping[str, Any]) -> bool:
    """Whether a head says in any way what it reads."""
    listed = (config.get(LAYER_IDS), (config.get(NESTED) or {}).get(LAYER_IDS))
    return reads_final_norm(config) or listed != (None, None)


def reads_final_norm(config: Mapping[str, Any]) -> bool:
    """Whether a head says that it reads no captured layers, but the target's last hidden."""
    return False in (config.get(NO_AUX), (config.get(NESTED) or {}).get(NO_AUX))


@dataclass(frozen=True)
class CaptureChoice:
    """Which target layers a head reads, and who said so."""

    outputs: tuple[int, ...]  # ascending; i is layer i's output, -1 the output of the final norm
    source: str  # "user" | "head" | "default"
    convention: LayerIds  # how a head's own list was read

    def __str__(self) -> str:
        inputs = ", ".join("final norm" if i < 0 else str(i + 1) for i in self.outputs)
        origin = {
            "user": f"from {_USER_LAYERS}",
            "head": f"from the head's config, read as {self.convention.value}s",
            "default": "the default",
        }[self.source]
        return f"outputs of layers {list(self.outputs)} = inputs of layers [{inputs}], {origin}"


def capture_layers(
    user: Sequence[int] | None,
    config: Mapping[str, Any],
    convention: LayerIds,
    layers: int,
    count: int | None = None,
) -> CaptureChoice:
    """The layers of an L-layer target that a head of C = `count` captured layers reads (None: any number).

    The user's list, which means outputs, comes before the head's, that before the default.
    """
    if user is not None:
        problem = _fault(user, layers, count)
        if reads_final_norm(config) and list(user) != [-1]:
            problem = f"the head reads the final norm's output alone ({NO_AUX}=false): leave it out, or say [-1]"
        if problem:
            raise ConfigError([Problem(_USER_LAYERS, problem, list(user))])
        return CaptureChoice(tuple(sorted(user)), "user", LayerIds.output)
    listed = listed_layers(config)
    if reads_final_norm(config):
        if listed not in (None, [], [-1]):
            raise UnsupportedError(f"{NO_AUX}=false and {LAYER_IDS}={listed} contradict each other")
        return CaptureChoice((-1,), "head", LayerIds.output)
    if listed is None:
        outputs: tuple[int, ...] = default_capture(layers)
        if problem := _fault(outputs, layers, count):
            raise WeightError(
                f"the default layers {list(outputs)} do not fit: {problem}; name layers in {_USER_LAYERS}"
            )
        return CaptureChoice(outputs, "default", LayerIds.output)
    meaning = list_meaning(listed, config, layers) if convention is LayerIds.auto else convention
    shift = 1 if meaning is LayerIds.input else 0
    if shift and 0 in listed:
        raise UnsupportedError(
            f"{LAYER_IDS} {listed}, read as inputs, asks for the input of layer 0, which is not captured"
        )
    outputs = tuple(sorted(i - shift if i >= 0 else i for i in listed))
    if problem := _fault(outputs, layers, count):
        key = LAYER_IDS if config.get(LAYER_IDS) is not None else f"{NESTED}.{LAYER_IDS}"
        raise WeightError(
            f"config.json's {key} {listed}, read as {meaning.value}s of layers: {problem}; {_USER_LAYERS} overrules it"
        )
    return CaptureChoice(outputs, "head", meaning)


def list_meaning(listed: Sequence[int], config: Mapping[str, Any], layers: int | None) -> LayerIds:
    """Whether a head's list means outputs or inputs, as far as it tells; `layers` None: the target is not known.

    Raises ConfigError where nothing tells.
    """
    nested = config.get(NESTED) or {}
    told = nested.get(CONVENTION) or config.get(CONVENTION)
    if told is not None:
        if told not in (LayerIds.output.value, LayerIds.input.value):
            raise WeightError(f"{CONVENTION} must be output or input, not {told!r}")
        return LayerIds(told)
    if is_speculators(config):
        return LayerIds.input
    if layers is not None:
        default = set(default_capture(layers))
        if layers in listed or set(listed) == {i + 1 for i in default}:
            return LayerIds.input
        if set(listed) == default or min(listed, default=0) == 1:
            return LayerIds.output
        if "target_model_type" in config or any(key in nested for key in _MODELOPT):  # AngelSlim's, NVIDIA's
            return LayerIds.output
    if set(listed) == {-1}:
        return LayerIds.output
    text = f"the head lists {list(listed)} and does not tell whether outputs or inputs: choose output or input"
    raise ConfigError([Problem("draft.layer_ids_convention", text, LayerIds.auto.value)])


def _fault(outputs: Sequence[int], layers: int, count: int | None) -> str | None:
    if outside := [i for i in outputs if not -1 <= i < layers]:
        return f"{outside} is outside 0…{layers - 1} (or -1, the output of the final norm)"
    if len(set(outputs)) != len(outputs) or not outputs:
        return "they must be distinct, and at least one"
    if count is not None and len(outputs) != count:
        return f"{len(outputs)} layers given, the head's fc.weight reads {count}"
    return None
