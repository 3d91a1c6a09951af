"""Reading config.json."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jit_kernels.sample import MAX_VOCAB
from jit_kernels.select_topk import MAX_TOP_K
from layers.models.deepseek_v4.config import (
    MAX_INDEX_TOPK,
    MAX_VOCAB_SIZE,
    ConfigFault,
    ModelConfig,
    check_geometry_of_kernels,
    load_config,
    parse_config,
    pool_spec,
    resolve_record_format,
)
from layers.models.rope_scaling import YarnScaling
from mem_cache.spec import TreeSpec
from runtime.default_model.folder import default_model_folder
from tests.testing.stand_in.folder import stand_in_config


def _raw(**changes: Any) -> dict[str, Any]:
    return {**stand_in_config(), **changes}


def _write(folder: Path, raw: object, generation: object = None) -> Path:
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder


def test_every_field_comes_from_the_file(tmp_path: Path) -> None:
    raw = _raw(compress_ratios=[0, 128, 4, 0, 128, 4, 0], hidden_size=320)

    config = load_config(_write(tmp_path, raw))

    assert config.hidden_size == 320
    assert config.compress_ratios == (0, 128, 4, 0, 128, 4)
    assert config.rope_scaling == YarnScaling(16.0, 32.0, 1.0, 2048)
    assert config.architectures == ("DeepseekV4ForCausalLM",)
    same = set(ModelConfig.__slots__) & {k for k, v in raw.items() if isinstance(v, int | float)}
    assert len(same) > 20
    assert all(getattr(config, name) == raw[name] for name in same)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_both_spellings_of_the_rope_type_are_read(key: str) -> None:
    scaling = {key: "yarn", "factor": 4, "original_max_position_embeddings": 100}

    assert parse_config(_raw(rope_scaling=scaling)).rope_scaling == YarnScaling(4.0, 32.0, 1.0, 100)


@pytest.mark.parametrize("scaling", [None, {"type": "default"}, {"rope_type": "default"}])
def test_no_scaling_is_plain_rope(scaling: object) -> None:
    assert parse_config(_raw(rope_scaling=scaling)).rope_scaling is None


@pytest.mark.parametrize(
    ("ours", "generation", "ids"),
    [(1, None, (1,)), ([1, 5], [5, 7], (1, 5, 7)), (None, 3, (3,)), (1, 1, (1,)), (None, None, ())],
)
def test_end_tokens_are_gathered_from_both_files(
    tmp_path: Path, ours: object, generation: object, ids: tuple[int, ...]
) -> None:
    folder = _write(tmp_path, _raw(eos_token_id=ours), {"eos_token_id": generation})

    assert load_config(folder).eos_token_ids == ids


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "deepseek_v3"}, "model_type"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": 256.0}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"head_dim": "512"}, "head_dim"),
        ({"hc_eps": None}, "hc_eps"),
        ({"swiglu_limit": -1}, "swiglu_limit"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"compress_ratios": [0, 8, 4, 0, 128, 4]}, r"compress_ratios\[1\]"),
        ({"compress_ratios": [False, 4, 4, 0, 128, 4]}, r"compress_ratios\[0\]"),
        ({"compress_ratios": [0, 128]}, "compress_ratios"),
        ({"compress_ratios": 4}, "compress_ratios"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"scoring_func": "sigmoid"}, "scoring_func"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window": None}, "sliding_window"),
        ({"o_groups": 3}, "o_groups"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim"),
        ({"head_dim": 513}, "head_dim must be even"),
        ({"hidden_size": 10**400}, "hidden_size must be an integer of at most"),
        ({"rope_theta": 1}, "rope_theta must be above 1"),
        ({"compress_rope_theta": 1.0}, "compress_rope_theta must be above 1"),
        ({"qk_rope_head_dim": 576}, "head_dim"),
        ({"qk_rope_head_dim": 256}, "index_head_dim"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"index_topk": 2049}, "index_topk must be at most 2048"),
        ({"vocab_size": 2**18 + 1}, "vocab_size must be at most 262144"),
        ({"num_hash_layers": -1}, "num_hash_layers"),
        ({"attention_bias": True}, "attention_bias"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"norm_topk_prob": False}, "norm_topk_prob"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"n_group": 4}, "n_group"),
        ({"rope_scaling": {"factor": 4}}, "rope_scaling.type"),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, "rope_scaling.type"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "original_max_position_embeddings"),
        (
            {"rope_scaling": {**_raw()["rope_scaling"], "attention_factor": 1.2}},
            "rope_scaling.attention_factor",
        ),
        ({"rope_scaling": "yarn"}, "rope_scaling"),
        ({"eos_token_id": 512}, "eos_token_id"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id"),
        ({"bos_token_id": -1}, "bos_token_id"),
        ({"architectures": "DeepseekV4ForCausalLM"}, "architectures"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method"),
        ({"quantization_config": {"quant_method": "fp8"}}, "weight_block_size"),
        ({"expert_dtype": "int4"}, "expert_dtype"),
    ],
)
def test_what_is_not_run_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigFault, match=field) as caught:
        parse_config(_raw(**change))

    assert "\n" not in str(caught.value)


def test_what_the_selection_takes_is_taken() -> None:
    assert MAX_INDEX_TOPK == MAX_TOP_K
    assert parse_config(_raw(index_topk=MAX_TOP_K)).index_topk == MAX_TOP_K


def test_the_vocabulary_that_sampling_takes_is_taken() -> None:
    assert MAX_VOCAB_SIZE == MAX_VOCAB
    assert parse_config(_raw(vocab_size=MAX_VOCAB)).vocab_size == MAX_VOCAB


@pytest.mark.parametrize("dtype", ["fp4", "fp8", None])
def test_the_dtype_of_experts_is_read_where_weights_are_quantised(dtype: str | None) -> None:
    inside = {**_raw()["quantization_config"], "expert_dtype": dtype}

    assert parse_config(_raw(expert_dtype=dtype)).expert_dtype == dtype
    assert parse_config(_raw(expert_dtype="fp8", quantization_config=inside)).expert_dtype == dtype
    assert parse_config(_raw(expert_dtype=dtype, quantization_config=None)).expert_dtype is None


@pytest.mark.parametrize("blocks", [[64, 64], [128, 64], [1, 128], 128])
def test_other_weight_blocks_are_refused(blocks: object) -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": blocks}

    with pytest.raises(ConfigFault, match="weight_block_size must be"):
        parse_config(_raw(quantization_config=quantization))


@pytest.mark.parametrize(
    "name", ["model_type", "vocab_size", "hc_mult", "compress_ratios", "num_hash_layers"]
)
def test_a_missing_field_is_named(name: str) -> None:
    raw = _raw()
    del raw[name]

    with pytest.raises(ConfigFault, match=f"^{name} is missing$"):
        parse_config(raw)


def test_an_override_replaces_entries(tmp_path: Path) -> None:
    override = 'num_hidden_layers=2, compress_ratios=[4,128],rope_scaling=null,hidden_act="silu"'

    config = load_config(_write(tmp_path, _raw()), override)

    assert config.compress_ratios == (4, 128)
    assert config.num_hash_layers == 2
    assert config.rope_scaling is None


def test_an_override_cuts_layers_and_their_ratios(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, _raw()), "num_hidden_layers=2,index_topk=8")

    assert (config.compress_ratios, config.index_topk) == ((0, 128), 8)


@pytest.mark.parametrize(
    "override",
    [
        "index_topkk=8",
        "eos_token_ids=[1]",
        "index_topk",
        "index_topk=",
        "index_topk=many",
        "index_topk=8;hc_mult=4",
        "index_topk=8,",
        "index_topk=-8",
        ",index_topk=8",
    ],
)
def test_a_bad_override_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigFault, match=r"override|index_topk"):
        load_config(_write(tmp_path, _raw()), override)


@pytest.mark.parametrize(
    ("head_dim", "asked", "dtype", "got"),
    [
        (512, "auto", "float32", "fp8"),
        (512, "bf16", "float32", "bf16"),
        (512, "fp32", "bfloat16", "fp32"),
        (256, "auto", "float32", "fp32"),
        (256, "auto", "bfloat16", "bf16"),
        (256, "fp32", "bfloat16", "fp32"),
    ],
)
def test_the_record_format_follows_flag_geometry_and_dtype(
    head_dim: int, asked: str, dtype: str, got: str
) -> None:
    assert resolve_record_format(parse_config(_raw(head_dim=head_dim)), asked, dtype) == got


@pytest.mark.parametrize(
    "change", [{"head_dim": 256}, {"qk_rope_head_dim": 32}, {"index_head_dim": 64}]
)
def test_the_packed_record_is_refused_for_another_geometry(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigFault, match="fp8 needs head_dim 512"):
        resolve_record_format(parse_config(_raw(**change)), "fp8", "bfloat16")


@pytest.mark.parametrize(("asked", "dtype"), [("fp16", "float32"), ("auto", "float16")])
def test_an_unknown_record_format_is_refused(asked: str, dtype: str) -> None:
    with pytest.raises(ConfigFault, match="kv_cache_dtype"):
        resolve_record_format(parse_config(_raw(head_dim=256)), asked, dtype)


def test_the_pool_spec_takes_its_window_from_the_model() -> None:
    spec = pool_spec(parse_config(_raw(sliding_window=96)), "fp8")

    assert spec.tree == TreeSpec(page_size=256, swa_page_size=64, window=96)
    drafts = pool_spec(parse_config(_raw(sliding_window=96)), "fp8", draft_tokens=3)
    assert drafts.tree == TreeSpec(window=96, draft_tokens=3)
    assert spec.layers_with_ratio(4) == (2, 5)
    assert (spec.head_dim, spec.rope_dim, spec.index_head_dim) == (512, 64, 128)
    assert spec.record_format == "fp8"


def test_a_page_holds_whole_compressed_records() -> None:
    with pytest.raises(ConfigFault, match="128 does not divide the page of 64 tokens"):
        pool_spec(parse_config(_raw()), "fp8", TreeSpec(page_size=64))


def _saved() -> dict[str, Any]:
    """Return `_raw` as transformers saves it."""
    raw = _raw()
    kinds = {0: "sliding", 4: "compressed_sparse", 128: "heavily_compressed"}
    saved: dict[str, Any] = {
        **raw,
        "partial_rotary_factor": 0.125,
        "transformers_version": "5.23.0",
    }
    saved["layer_types"] = [f"{kinds[ratio]}_attention" for ratio in saved["compress_ratios"]]
    saved["mlp_layer_types"] = ["hash_moe"] * 3 + ["moe"] * 3
    saved["rope_parameters"] = {
        "main": {"rope_type": "default", "rope_theta": 10000},
        "compress": {**raw["rope_scaling"], "rope_theta": 160000, "attention_factor": 1.0},
    }
    for name in ("qk_rope_head_dim", "compress_ratios", "num_hash_layers", "rope_scaling"):
        del saved[name]
    return saved


def test_what_transformers_saves_is_the_same_configuration() -> None:
    assert parse_config(_saved()) == parse_config(_raw())


@pytest.mark.parametrize(
    "override",
    [
        "rope_theta=777",
        "compress_rope_theta=888",
        "rope_scaling=null",
        'rope_scaling={"type":"default"}',
        "qk_rope_head_dim=32,num_hash_layers=1",
        "num_hidden_layers=2,compress_ratios=[4,128]",
    ],
)
def test_an_override_wins_however_the_file_spells_it(tmp_path: Path, override: str) -> None:
    folder = _write(tmp_path, _raw())
    want = load_config(folder, override)
    _write(tmp_path, _saved())

    assert load_config(folder, override) == want != load_config(folder)


def test_an_override_may_spell_as_transformers_does(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, _saved()), 'mlp_layer_types=["hash_moe","moe"]')

    assert config.num_hash_layers == 1


def test_another_geometry_than_the_kernels_take_is_refused(oracle_v4_small: Path) -> None:
    with pytest.raises(ConfigFault, match=r"head_dim is 64.*--device cpu"):
        check_geometry_of_kernels(load_config(oracle_v4_small))


@pytest.mark.parametrize(
    "change",
    [{"hc_mult": 5}, {"index_n_heads": 65}, {"num_attention_heads": 129}, {"q_lora_rank": 100}],
)
def test_what_kernels_do_not_take_is_refused_by_its_field(change: dict[str, int]) -> None:
    config = load_config(default_model_folder())
    check_geometry_of_kernels(config)

    with pytest.raises(ConfigFault, match=rf"{next(iter(change))} is .*--device cpu"):
        check_geometry_of_kernels(replace(config, **change))  # type: ignore[arg-type]
