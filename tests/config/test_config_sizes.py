"""Memory sums against counts made by hand or by the real models."""

from eagle3.config.load import compose
from eagle3.config.sizes import head_size, kv_bytes_per_token, memory_sum, target_size


def test_known_parameter_counts() -> None:
    small, llama, vicuna = (compose([f"conf={name}"]).config for name in ("smollm2", "llama8b", "vicuna13b"))
    assert small.target.architecture is not None
    assert llama.target.architecture is not None
    assert llama.draft.architecture is not None
    assert vicuna.draft.architecture is not None

    assert target_size(small.target.architecture) == 134_515_008
    assert target_size(llama.target.architecture) == 8_030_261_248
    assert round(head_size(llama.draft.architecture, 3) / 1e6, 1) == 424.7
    assert round(head_size(vicuna.draft.architecture, 3) / 1e6) == 638


def test_rows_of_a_tree_engine() -> None:
    got = compose(["conf=llama8b", "kv.max_tokens=1024"])

    rows = dict(memory_sum(got.config, got.shape))

    assert rows["logits workspace"] == 8 * 60 * 128256 * 4
    assert rows["capture buffer"] == (2048 + 60 * 8) * 3 * 4096 * 2
    per_token = 2 * 2 * 8 * 128 * (32 + 1)
    assert kv_bytes_per_token(got.config) == per_token
    assert rows["KV of 1024 entries"] == 1024 * per_token


def test_short_sequences_bound_the_capture_buffer() -> None:
    got = compose(
        ["conf=llama8b", "runtime.max_seq_len=100", "spec.layers_to_capture=[3]", "sampling.max_new_tokens=9"]
    )

    assert dict(memory_sum(got.config, got.shape))["capture buffer"] == (8 * 100 + 60 * 8) * 4096 * 2


def test_penalties_count_tokens_by_slot() -> None:
    asked = (["sampling.presence_penalty=1"], ["sampling.repetition_penalty=1.1"], ["spec.enable_penalty=true"])
    for overrides in asked:
        got = compose(["conf=llama8b", *overrides])
        assert dict(memory_sum(got.config, got.shape))["counts for penalties"] == 9 * 128256 * (4 + 1)
    none = compose(["conf=llama8b", "sampling.min_new_tokens=3"])
    assert "counts for penalties" not in dict(memory_sum(none.config, none.shape))


def test_a_cpu_holds_float32_and_unknown_facts_give_no_sum() -> None:
    small = compose(["runtime.device=cpu"])
    unknown = compose(["conf=base", "target.checkpoint=T"])

    assert dict(memory_sum(small.config, small.shape))["target weights, float32"] == 4 * 134_515_008
    assert memory_sum(unknown.config, unknown.shape) == []
    assert kv_bytes_per_token(unknown.config) is None
