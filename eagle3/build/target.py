"""The target and its text side, from a checkpoint."""

from collections.abc import Callable
from pathlib import Path

import torch

from eagle3.build.folders import made_up
from eagle3.config.facts import longest_request
from eagle3.config.files import read_json
from eagle3.config.schema import DType, EngineConfig, LoadFormat, TargetConfig
from eagle3.config.shape import DraftShape
from eagle3.engine.scheduler import Limits
from eagle3.errors import ConfigError, Problem, WeightError
from eagle3.models.checkpoint import resolve
from eagle3.models.decoder import Decoder, ModelFacts
from eagle3.models.lfs import require_content
from eagle3.models.weights import dummy_weights, load_weights
from eagle3.text.tokenizer import TOKENIZER_FILES, Tokenizer, end_token_ids

Text = tuple[Tokenizer | None, frozenset[int]]
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Progress = Callable[[int, int], None]  # bytes of weights loaded, bytes in all


def pick_device(name: str) -> torch.device:
    """`auto` is the first GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        seen = torch.cuda.device_count()
        problem = Problem("runtime.device", f"names a GPU, {seen} are there: use cpu or auto", name)
        raise ConfigError([problem])
    return device


def target_facts(target: TargetConfig) -> tuple[Path | None, ModelFacts]:
    """The folder of the target's files, and its facts. With dummy weights the configuration's own facts will do."""
    folder = target_folder(target)
    return folder, facts_in(folder, target)


def target_folder(target: TargetConfig) -> Path | None:
    """The folder of the target's files, fetched if need be; None where dummy weights need none."""
    if made_up(target):
        return None
    return resolve(target.checkpoint, revision=target.revision, sha256=target.sha256)


def facts_in(folder: Path | None, target: TargetConfig) -> ModelFacts:
    """The target's facts, of its folder or of the configuration; ConfigError where these disagree."""
    if folder is None:
        assert target.architecture is not None
        return ModelFacts.from_architecture(target.architecture)
    facts = ModelFacts.from_hf(folder)
    check_inline(target, facts)
    return facts


def check_inline(target: TargetConfig, facts: ModelFacts) -> None:
    """Raise ConfigError where the facts that a configuration carries are not those of the checkpoint."""
    inline = ModelFacts.from_architecture(target.architecture) if target.architecture else None
    if inline and (wrong := inline.differences(facts)):
        advice = "choose the group of this checkpoint, or target=base, which takes its facts from it, or mend it"
        text = f"does not go with config.json of {target.checkpoint}: {advice}:\n"
        text += "\n".join(f"  {line}" for line in wrong)
        raise ConfigError([Problem("target.architecture", text, inline.architecture)])


def engine_limits(cfg: EngineConfig, facts: ModelFacts) -> Limits:
    """The engine's sizes, all defaults resolved."""
    runtime = cfg.runtime
    return Limits(
        max_batch_size=runtime.max_batch_size,
        max_seq_len=longest_request(runtime, facts.max_positions),
        max_num_tokens=runtime.max_num_tokens,
        prompt_chunk=runtime.prompt_chunk or runtime.max_num_tokens,
    )


def load_target(
    target: TargetConfig,
    folder: Path | None,
    facts: ModelFacts,
    limits: Limits,
    shape: DraftShape,
    device: torch.device,
    progress: Progress | None,
    *,
    steady: bool,
) -> Decoder:
    """The target with its weights, for inference; `steady`: runtime.batch_invariant."""
    model = Decoder(
        facts,
        max_positions=shape.entries(limits.max_seq_len),
        max_seq_len=limits.max_seq_len,
        steady=steady,
        dtype=torch_dtype(target.dtype, folder, device),
        device=device,
    ).requires_grad_(False)
    if target.load_format is LoadFormat.dummy or folder is None:
        dummy_weights(model)
    else:
        load_weights(model, folder, facts.family.names, tied=facts.tied_names, progress=progress)
    return model.eval()


def torch_dtype(asked: DType, folder: Path | None, device: torch.device) -> torch.dtype:
    """`auto`: float32 on a CPU; on a GPU the checkpoint's own, bfloat16 where it does not say.

    WeightError where that is no type of ours.
    """
    name = asked.value
    if asked is DType.auto:
        name = "float32" if device.type == "cpu" else "bfloat16"
        if folder is not None and device.type != "cpu":
            config = read_json(folder / "config.json")
            name = config.get("dtype") or config.get("torch_dtype") or name
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype) or dtype not in TYPES:
        raise WeightError(f"{folder}: its config.json has dtype {name!r}, which is not ours: give target.dtype")
    return dtype


def load_text(folder: Path) -> Text:
    """The checkpoint's tokenizer, if it has one, and the tokens that end an answer."""
    whole = folder / "tokenizer.json"  # the others are read where it is not there
    for file in [whole] if whole.is_file() else [folder / name for name in TOKENIZER_FILES]:
        require_content(file)
    tokenizer = Tokenizer.find(folder)
    return tokenizer, frozenset(end_token_ids(folder, tokenizer))
