"""The facts of a head, taken from its tensors and held against its config.json."""

import re
from typing import Protocol

from eagle3.config.schema import DraftConfig, Embedding
from eagle3.errors import ConfigError, Problem, WeightError
from eagle3.models.faults import Faults
from eagle3.models.head_facts import HeadFacts
from eagle3.models.head_fields import check_fields
from eagle3.models.head_files import HeadFiles
from eagle3.models.head_names import other_kind, spelled
from eagle3.models.head_variants import Variants, variants
from eagle3.models.vocab_map import check_d2t
from eagle3.nn.rope import RopeFacts

_QK = ("self_attn.q_proj", "self_attn.k_proj")


class Widths(Protocol):
    """What a head's shapes are held against: a target."""

    @property
    def hidden(self) -> int:
        """Ht."""

    @property
    def vocab(self) -> int:
        """V."""


def head_facts(files: HeadFiles, target: Widths, cfg: DraftConfig) -> tuple[HeadFacts, list[str]]:
    """Facts from the tensors, and warnings; WeightError or UnsupportedError for a head that we cannot run."""
    faults = Faults("draft.checkpoint")
    facts, warnings = survey_head(files, target, cfg, faults)
    faults.tell()
    assert facts is not None
    return facts, warnings


def survey_head(
    files: HeadFiles, target: Widths, cfg: DraftConfig, faults: Faults
) -> tuple[HeadFacts | None, list[str]]:
    """As `head_facts`, with all that is wrong in `faults`; no facts where that leaves names of tensors open."""
    if not faults.sound(lambda: require_head(files)):
        return None, []
    warnings: list[str] = faults.attempt(lambda: check_fields(files.fields, files.folder / "config.json"), [])
    facts = _Reader(files, target, cfg, faults).facts()
    if facts is None:
        return None, warnings
    fields, told = (
        files.fields,
        {
            "num_hidden_layers": facts.layers,
            "head_dim": facts.head_dim,
            "attention_bias": facts.qkv_bias,
            "mlp_bias": facts.mlp_bias,
            "bias": facts.fc_bias,
            "eh_proj_bias": facts.eh_proj_bias,
            "use_qk_norm": facts.qk_norm,
        },
    )
    if facts.layers > 1 and not facts.eh_proj:
        told["next_layer_regular"] = not facts.all_layers_pair
    for key, ours in told.items():
        if fields.get(key, ours) != ours:
            warnings.append(f"{key} is {fields[key]} in config.json, the tensors say {ours}; tensors win")
    if fields.get("tie_word_embeddings"):
        why = f"it guesses {facts.draft_vocab} of {facts.vocab} tokens"
        warnings.append(
            "tie_word_embeddings is ignored: "
            + (why if facts.draft_vocab < facts.vocab else "an output head is shipped or borrowed")
        )
    return facts, warnings


def require_head(files: HeadFiles) -> None:
    """Raise WeightError where the tensors are of something else, and say of what."""
    if kind := other_kind(files.tensors):
        raise WeightError(f"{files.folder} is no EAGLE-3 head, but seems to hold {kind}")


class _Reader:
    """Derives facts one after the other; what is wrong is kept, and the next one looked at."""

    def __init__(self, files: HeadFiles, target: Widths, cfg: DraftConfig, faults: Faults) -> None:
        self.files, self.target, self.cfg, self.faults = files, target, cfg, faults
        self.config, self.tensors = files.fields, files.tensors
        self.variants: Variants

    def facts(self) -> HeadFacts | None:
        """None where something is wrong on which shapes depend; where config.json alone is, tensors win."""
        found = self.faults.attempt(
            lambda: variants(self.files.config, self.config, self.tensors, self.cfg, self.files.folder / "config.json"),
            None,
        )
        if found is None or not self.faults.sound(lambda: self._needed(found["fc"])):
            return None
        self.variants = found
        one = "fc.weight" if found["fc"] else "layers.0.self_attn.o_proj.weight"
        gate = "layers.0.mlp.gate_proj.weight"
        hidden, width = self._shape(one)
        whole = self.faults.sound(lambda: self._agree("hidden_size", hidden, one))
        self.faults.sound(self._target_width)
        seen = width if found["fc"] else hidden
        captured = self.faults.attempt(lambda: self._captured(seen), max(1, seen // self.target.hidden))
        counts = self.faults.attempt(lambda: self._heads(hidden), None) if whole else None
        intermediate = self._shape(gate)[0]
        self.faults.sound(lambda: self._agree("intermediate_size", intermediate, gate))
        layers = self.faults.attempt(self._layers, None)
        rows = self._rows("lm_head.weight")
        draft_vocab = self.faults.attempt(lambda: self._draft_vocab(hidden), rows)
        eps = self.faults.attempt(self._eps, 1e-6)
        rope = self.faults.attempt(self._rope, RopeFacts(10000.0, 2048))
        embedding = (
            self.faults.attempt(lambda: self._own_embedding(hidden, self.cfg.embedding), None) if whole else None
        )
        mapped = False
        if draft_vocab is not None:
            mapped = self.faults.attempt(lambda: self._mapped(draft_vocab), "d2t" in self.tensors)
        if counts is None or layers is None or draft_vocab is None or embedding is None:
            return None
        return HeadFacts(
            hidden=hidden,
            target_hidden=self.target.hidden,
            captured=captured,
            intermediate=intermediate,
            layers=layers,
            heads=counts[0],
            kv_heads=counts[1],
            head_dim=counts[2],
            vocab=self.target.vocab,
            draft_vocab=draft_vocab,
            eps=eps,
            rope=rope,
            fc_bias="fc.bias" in self.tensors,
            qkv_bias="layers.0.self_attn.q_proj.bias" in self.tensors,
            o_bias="layers.0.self_attn.o_proj.bias" in self.tensors,
            mlp_bias="layers.0.mlp.gate_proj.bias" in self.tensors,
            own_embedding=embedding,
            own_lm_head="lm_head.weight" in self.tensors,
            mapped=mapped,
            eh_proj_bias="eh_proj.bias" in self.tensors,
            all_layers_pair=self._all_layers_pair(hidden),
            **found,
        )

    def _needed(self, fc: bool) -> None:
        """The tensors that shapes are taken from."""
        needed = ["fc.weight"] * fc + [f"layers.0.{name}.weight" for name in (*_QK, "mlp.gate_proj")]
        needed += ["layers.0.self_attn.o_proj.weight"] * (not fc)
        matrices = [*needed, *(name for name in ("lm_head.weight", "embed_tokens.weight") if name in self.tensors)]
        if missing := [name for name in needed if name not in self.tensors]:
            names = spelled(missing, {name: found.stored for name, found in self.tensors.items()})
            raise WeightError(f"{self.files.folder} is no EAGLE-3 head, it lacks {', '.join(names.values())}")
        if flat := [name for name in matrices if len(self.tensors[name].shape) != 2]:
            raise WeightError(f"{self.files.where(flat[0])} must be a matrix")

    def _eps(self) -> float:
        eps = self.config.get("rms_norm_eps", 1e-6)
        if not isinstance(eps, float) or not 0 < eps < 1:
            raise self._error("rms_norm_eps", eps, "must be a small positive number")
        return eps

    def _rows(self, name: str) -> int | None:
        return self.tensors[name].shape[0] if name in self.tensors else None

    def _shape(self, name: str) -> tuple[int, int]:
        rows, columns = self.tensors[name].shape
        return rows, columns

    def _error(self, key: str, value: object, message: str) -> WeightError:
        return WeightError(f"{self.files.folder / 'config.json'}: {key} is {value!r}, {message}")

    def _integer(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise self._error(key, value, "must be a positive integer")
        return value

    def _agree(self, key: str, seen: int, name: str) -> None:
        """The config's `key`, if it is there, must be `seen`, which tensor `name` says."""
        if (value := self._integer(key, seen)) != seen:
            raise self._error(key, value, f"but {self.files.where(name)} makes it {seen}")

    def _target_width(self) -> None:
        key, own = "target_hidden_size", self.target.hidden
        if (value := self._integer(key, own)) != own:
            raise self._error(key, value, f"but the target's hidden size is {own}")

    def _captured(self, width: int) -> int:
        own = self.target.hidden
        if not self.variants["fc"] and width != own:
            raise WeightError(
                f"{self.files.folder} reads the final norm's output, and has no fc: its hidden size {width} must be"
                f" the target's {own}"
            )
        if width % own or not width:
            raise WeightError(f"{self.files.where('fc.weight')} must read a multiple of the target's hidden size {own}")
        return width // own

    def _heads(self, hidden: int) -> tuple[int, int, int]:
        """Heads, kv heads and head_dim."""
        q, k = (f"layers.0.{name}.weight" for name in _QK)
        for name in (q, k):
            columns = self._shape(name)[1]
            if self.variants["eh_proj"] and columns != hidden:
                raise WeightError(f"{self.files.where(name)} must read {hidden}, what eh_proj makes")
            if not self.variants["eh_proj"] and columns != 2 * hidden:
                hint = "; an ordinary layer has that" if columns == hidden else ""
                raise WeightError(f"{self.files.where(name)} must read 2 · {hidden}, embedding and feature{hint}")
        heads = self._integer("num_attention_heads")
        rows, kv_rows = self._shape(q)[0], self._shape(k)[0]
        if rows % (2 * heads):
            raise self._error(
                "num_attention_heads", heads, f"but {self.files.where(q)} makes no such number of even heads"
            )
        head_dim = rows // heads
        kv_heads = self._integer("num_key_value_heads", heads)
        if kv_rows != kv_heads * head_dim:
            raise self._error(
                "num_key_value_heads", kv_heads, f"but {self.files.where(k)} is not {kv_heads} · {head_dim}"
            )
        if heads % kv_heads:
            raise self._error("num_key_value_heads", kv_heads, f"which does not divide {heads} heads")
        return heads, kv_heads, head_dim

    def _layers(self) -> int:
        numbers = {int(name.split(".")[1]) for name in self.tensors if re.match(r"layers\.\d+\.", name)}
        if absent := sorted(set(range(len(numbers))) - numbers):
            raise WeightError(f"{self.files.folder} has layers {sorted(numbers)} but no layer {absent[0]}")
        return len(numbers)

    def _all_layers_pair(self, hidden: int) -> bool:
        """Whether the second layer reads 2 · H, as the first does; what does not fit it is found by its shape."""
        second = self.tensors.get("layers.1.self_attn.q_proj.weight")
        return second is not None and second.shape[1:] == (2 * hidden,) and not self.variants["eh_proj"]

    def _draft_vocab(self, hidden: int) -> int:
        vocab, key, name = self.target.vocab, "draft_vocab_size", "lm_head.weight"
        if (value := self._integer("vocab_size", vocab)) != vocab:
            raise self._error("vocab_size", value, f"but the target has {vocab} tokens: another tokenizer?")
        wanted = self._integer(key, self.tensors[name].shape[0] if name in self.tensors else vocab)
        if wanted > vocab:
            raise self._error(key, wanted, f"more than the target's vocabulary of {vocab}")
        if name in self.tensors:
            self._agree(key, self.tensors[name].shape[0], name)
        elif wanted != vocab or hidden != self.target.hidden:
            raise WeightError(
                f"{self.files.folder} has no {name} [{wanted}, {hidden}], and the target's"
                f" [{vocab}, {self.target.hidden}] cannot stand in"
            )
        return wanted

    def _rope(self) -> RopeFacts:
        scaling = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        if not isinstance(scaling, dict):
            raise self._error("rope_scaling", scaling, "must be an object")
        theta = self.config.get("rope_theta")
        theta = 10000.0 if theta is None else theta  # never the target's
        if type(theta) not in (int, float) or not 0 < theta < 2**63:
            raise self._error("rope_theta", theta, "must be a positive number")
        return RopeFacts.of(theta, self._integer("max_position_embeddings", 2048), scaling)

    def _own_embedding(self, hidden: int, embedding: Embedding) -> bool:
        name = "embed_tokens.weight"
        shipped = name in self.tensors
        key, value = "draft.embedding", embedding.value
        if embedding is Embedding.own and not shipped:
            raise ConfigError([Problem(key, f"{self.files.folder} ships no {name}", value)])
        if embedding is Embedding.target and hidden != self.target.hidden:
            text = f"the head's hidden size is {hidden}, the target's {self.target.hidden}: it needs its own"
            raise ConfigError([Problem(key, text, value)])
        if not shipped and hidden != self.target.hidden:
            raise WeightError(
                f"{self.files.folder} has no {name}, which it needs: its hidden size is {hidden}, the"
                f" target's {self.target.hidden}"
            )
        return shipped and embedding is not Embedding.target

    def _mapped(self, draft_vocab: int) -> bool:
        d2t, t2d = (self.files.read(name) if name in self.tensors else None for name in ("d2t", "t2d"))
        named = [str(self.tensors[name].file) for name in ("d2t", "t2d") if name in self.tensors]
        where = ", ".join(dict.fromkeys(named)) or str(self.files.folder)
        return check_d2t(d2t, t2d, self.target.vocab, draft_vocab, where)
