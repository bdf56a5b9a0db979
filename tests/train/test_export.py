"""A head goes out in the public format and comes back to the same bits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from eagle3.config.schema import DraftConfig
from eagle3.errors import WeightError
from eagle3.models.heads import load_head
from eagle3.train.export import export
from helpers.pairs import CPU, POSITIONS, facts, random_head, random_target

V = 24


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("layers", "changes"),
    [
        ((1, 3, 4), {}),  # the default for eight layers
        ((0, 2, 5), {"draft_vocab": 10}),
        ((2, 3), {"draft_vocab": 10, "captured": 2, "layers": 2}),
        ((2, 3, -1), {"heads": 2, "kv_heads": 1, "head_dim": 6}),
    ],
)
def test_round_trip(tmp_path: Path, layers: tuple[int, ...], changes: dict[str, Any], dtype: torch.dtype) -> None:
    target = random_target(facts(V))
    head = random_head(target, **changes).to(dtype)
    head.dtype = dtype
    export(head, layers, tmp_path)
    back, report = load_head(
        tmp_path, head.lender, DraftConfig(), None, max_positions=POSITIONS, max_seq_len=POSITIONS, device=CPU
    )
    assert back.dtype is dtype
    assert back.facts == head.facts
    assert set(report.capture.outputs) == set(layers)
    assert not report.warnings
    ours, theirs = head.state_dict(), back.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def written(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    return json.loads((folder / "config.json").read_text()), tensors


def test_what_is_written(tmp_path: Path) -> None:
    head = random_head(random_target(facts(V)), draft_vocab=10)
    export(head, (0, 2, 5), tmp_path / "a")
    config, tensors = written(tmp_path / "a")
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["vocab_size"], config["draft_vocab_size"], config["rope_theta"]) == (V, 10, 10000.0)
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 5]
    assert config["eagle_config"]["layer_ids_convention"] == "output"
    assert sorted(tensors["t2d"].nonzero().flatten().tolist()) == sorted((tensors["d2t"] + torch.arange(10)).tolist())
    assert tensors["t2d"].shape == (V,)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (32, 64)
    assert {"fc.weight", "norm.weight", "lm_head.weight", "midlayer.hidden_norm.weight"} < tensors.keys()
    assert not [name for name in tensors if name.startswith(("layers.", "embed", "model."))]

    export(random_head(random_target(facts(V))), (1, 3, 4), tmp_path / "b")
    config, tensors = written(tmp_path / "b")
    assert "eagle_aux_hidden_state_layer_ids" not in config["eagle_config"], "readers agree on the default layers"
    assert not {"d2t", "t2d"} & tensors.keys()


def test_a_convention_that_is_none_is_refused(tmp_path: Path) -> None:
    head = random_head(random_target(facts(V)))
    export(head, (0, 2, 5), tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace('"output"', '"both"'))
    with pytest.raises(WeightError, match="must be output or input, not 'both'"):
        load_head(tmp_path, head.lender, DraftConfig(), None, max_positions=9, max_seq_len=9, device=CPU)
