"""ModelConfig: what `config.json` says, read strictly.

Nothing is assumed from a model's name: the file decides everything, and whatever the network
does not run is refused with one sentence that names the field. Two spellings are understood:
the published one (`compress_ratios`, `rope_scaling`) and the one that transformers saves
(`layer_types`, `rope_parameters`).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from layers.models.config_files import read_files
from layers.models.deepseek_v4.config_spelling import SPELLING_FIELDS, published_spelling
from layers.models.deepseek_v4.pool_spec import PoolSpec, RecordFormat
from layers.models.json_fields import (
    ConfigFault,
    int_from,
    json_object,
    positive_int,
    positive_number,
    present,
    require,
    string_list,
)
from layers.models.rope_scaling import YarnScaling
from layers.models.token_ids import MAX_VOCAB_SIZE, end_ids, token_id
from mem_cache.spec import TreeSpec

__all__ = [
    "MAX_INDEX_TOPK",
    "MAX_VOCAB_SIZE",
    "RATIOS",
    "WEIGHT_BLOCK",
    "ConfigFault",
    "ModelConfig",
    "check_geometry_of_kernels",
    "load_config",
    "parse_checked",
    "parse_config",
    "pool_spec",
    "resolve_record_format",
]

RATIOS = (0, 4, 128)
WEIGHT_BLOCK = 128
# What `select_topk` takes, which loads torch.
MAX_INDEX_TOPK = 2048

# Fields that do not become part of ModelConfig, with the values the network computes.
_FIXED: dict[str, tuple[object, ...]] = {
    "num_key_value_heads": (1,),
    "n_shared_experts": (1,),
    "scoring_func": ("sqrtsoftplus",),
    "norm_topk_prob": (True,),
    "topk_method": ("noaux_tc", None),
    "n_group": (1, None),
    "topk_group": (1, None),
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "tie_word_embeddings": (False, None),
}
_QUANTIZATION: dict[str, tuple[object, ...]] = {
    "quant_method": ("fp8",),
    "fmt": ("e4m3", None),
    "activation_scheme": ("dynamic", None),
    "weight_block_size": ([WEIGHT_BLOCK, WEIGHT_BLOCK],),
    "scale_fmt": ("ue8m0", None),
    "expert_dtype": ("fp4", "fp8", None),
}
_OTHER_FIELDS = frozenset(
    {
        *SPELLING_FIELDS,
        *("bos_token_id", "eos_token_id", "quantization_config"),
    }
)
_POSITIVE_INTS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("qk_rope_head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "n_routed_experts"),
    *("num_experts_per_tok", "moe_intermediate_size", "index_n_heads", "index_head_dim"),
    *("index_topk", "hc_mult", "hc_sinkhorn_iters", "sliding_window", "max_position_embeddings"),
)
_POSITIVE_NUMBERS = (
    *("routed_scaling_factor", "swiglu_limit", "hc_eps", "rms_norm_eps"),
    *("rope_theta", "compress_rope_theta"),
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of one DeepSeek V4 network, under their names in `config.json`.

    compress_ratios   one of 0, 4, 128 per layer, exactly `num_hidden_layers` of them
    num_hash_layers   the first layers, which look their experts up by token id
    rope_scaling      None: plain rope everywhere
    eos_token_ids     ids of config.json, then those that only generation_config.json has
    expert_dtype      how the file holds routed experts; None where it says nothing of it
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    swiglu_limit: float
    num_hash_layers: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    sliding_window: int
    compress_ratios: tuple[int, ...]
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: YarnScaling | None
    max_position_embeddings: int
    rms_norm_eps: float
    eos_token_ids: tuple[int, ...]
    model_type: str
    architectures: tuple[str, ...]
    expert_dtype: Literal["fp4", "fp8"] | None = None


def load_config(path: Path, override: str | None = None) -> ModelConfig:
    """Read the configuration of the folder `path`; see `layers.models.config_files`."""
    return parse_checked(*read_files(path, override))


def parse_checked(
    raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]
) -> ModelConfig:
    """Return `parse_config`, unless an entry of `override` is no field that there is.

    Raises ConfigFault, naming the field, for whatever cannot be run.
    """
    known = {*raw, *ModelConfig.__slots__, *_FIXED, *_OTHER_FIELDS} - {"eos_token_ids"}
    for key in override:
        if key not in known:
            raise ConfigFault(f"override names {key!r}, which is no field of config.json")
    return parse_config(raw, generation, override)


def parse_config(
    raw: dict[str, Any],
    generation: dict[str, Any] | None = None,
    override: dict[str, Any] | None = None,
) -> ModelConfig:
    """Return the configuration held by the parsed files `config.json` and `generation_config.json`.

    override  entries that replace those of `raw`, however it spells them
    Raises ConfigFault, naming the field, for whatever cannot be run.
    """
    override = override or {}
    raw = raw | override
    require(raw, "model_type", ("deepseek_v4",))
    raw = published_spelling(raw) | override
    for name, allowed in _FIXED.items():
        if name in raw:
            require(raw, name, allowed)
    values: dict[str, Any] = {name: positive_int(raw, name) for name in _POSITIVE_INTS}
    values |= {name: positive_number(raw, name) for name in _POSITIVE_NUMBERS}
    layers, vocab_size = values["num_hidden_layers"], values["vocab_size"]
    config = ModelConfig(
        **values,
        num_hash_layers=min(int_from(raw, "num_hash_layers", 0), layers),
        compress_ratios=_compress_ratios(raw, layers),
        rope_scaling=_yarn(raw),
        eos_token_ids=end_ids(raw, generation or {}, vocab_size),
        model_type="deepseek_v4",
        architectures=_architectures(raw),
        expert_dtype=_expert_dtype(raw),
    )
    _check_bos(raw, vocab_size)
    _check_geometry(config)
    return config


def resolve_record_format(config: ModelConfig, kv_cache_dtype: str, dtype: str) -> RecordFormat:
    """Return the KV record format for `--kv-cache-dtype` and the network's `dtype`.

    kv_cache_dtype  "auto", "fp8", "bf16" or "fp32"; auto is fp8 where the geometry has a packed
                    record, else the network's own precision
    dtype           "float32" or "bfloat16"
    Raises ConfigFault when fp8 is demanded of a geometry that has no packed record.
    """
    packed = config.head_dim == 512 and config.qk_rope_head_dim == 64
    packed = packed and config.index_head_dim == 128
    if kv_cache_dtype == "auto":
        kv_cache_dtype = "fp8" if packed else {"float32": "fp32", "bfloat16": "bf16"}.get(dtype, "")
    if kv_cache_dtype == "fp8" and not packed:
        raise ConfigFault(
            "kv_cache_dtype fp8 needs head_dim 512, qk_rope_head_dim 64 and index_head_dim 128, "
            f"got {config.head_dim}, {config.qk_rope_head_dim} and {config.index_head_dim}"
        )
    if kv_cache_dtype not in ("fp8", "bf16", "fp32"):
        raise ConfigFault(
            f"kv_cache_dtype {kv_cache_dtype!r} with dtype {dtype!r} is not supported"
        )
    return kv_cache_dtype


def pool_spec(
    config: ModelConfig,
    record_format: RecordFormat,
    tree: TreeSpec | None = None,
    *,
    draft_tokens: int = 0,
) -> PoolSpec:
    """Return the pool shapes of a model.

    tree          page sizes; the rest of it is replaced by what the model says
    draft_tokens  most guessed tokens of a row in a step, 0 to 7
    Raises ConfigFault when a page does not hold whole compressed records of every layer, ValueError
    for another number of draft tokens.
    """
    tree = replace(
        tree or TreeSpec(),
        window=config.sliding_window,
        draft_tokens=draft_tokens,
        has_state=any(config.compress_ratios),
    )
    for ratio in set(config.compress_ratios) - {0}:
        if tree.page_size % ratio:
            raise ConfigFault(
                f"compress_ratios: {ratio} does not divide the page of {tree.page_size} tokens"
            )
    return PoolSpec(
        tree=tree,
        layer_ratios=config.compress_ratios,
        head_dim=config.head_dim,
        rope_dim=config.qk_rope_head_dim,
        index_head_dim=config.index_head_dim,
        record_format=record_format,
    )


def _compress_ratios(raw: dict[str, Any], layers: int) -> tuple[int, ...]:
    value: Any = present(raw, "compress_ratios")
    if not isinstance(value, list) or len(cast(list[Any], value)) < layers:
        raise ConfigFault(f"compress_ratios must be a list of at least {layers} entries")
    # A longer list goes on with the draft heads' ratios.
    ratios = cast(list[Any], value)[:layers]
    for index, ratio in enumerate(ratios):
        if type(ratio) is not int or ratio not in RATIOS:
            raise ConfigFault(f"compress_ratios[{index}] must be 0, 4 or 128, got {ratio!r}")
    return tuple(ratios)


def _yarn(raw: dict[str, Any]) -> YarnScaling | None:
    value: Any = raw.get("rope_scaling")
    if value is None:
        return None
    scaling = json_object(value, "rope_scaling")
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "default":
        return None
    if kind != "yarn":
        raise ConfigFault(f"rope_scaling.type must be yarn or default, got {kind!r}")
    where = "rope_scaling."
    if "attention_factor" in scaling:
        require(scaling, "attention_factor", (1.0, 1), where)
    original = positive_int(scaling, "original_max_position_embeddings", where)
    return YarnScaling(
        factor=positive_number(scaling, "factor", where),
        beta_fast=positive_number({"beta_fast": 32, **scaling}, "beta_fast", where),
        beta_slow=positive_number({"beta_slow": 1, **scaling}, "beta_slow", where),
        original_max_position_embeddings=original,
    )


def _expert_dtype(raw: dict[str, Any]) -> Literal["fp4", "fp8"] | None:
    value: Any = raw.get("quantization_config")
    if value is None:
        return None
    quantization = json_object(value, "quantization_config")
    declared = {"expert_dtype": raw.get("expert_dtype"), **quantization}
    for name, allowed in _QUANTIZATION.items():
        if name in declared or None not in allowed:
            require(declared, name, allowed, "quantization_config.")
    return declared["expert_dtype"]


def _check_bos(raw: dict[str, Any], vocab_size: int) -> None:
    value: Any = raw.get("bos_token_id")
    if value is not None:
        token_id(value, "bos_token_id", vocab_size)


def _architectures(raw: dict[str, Any]) -> tuple[str, ...]:
    return tuple(string_list({"architectures": [], **raw}, "architectures", None))


def check_geometry_of_kernels(config: ModelConfig) -> None:
    """Raise ConfigFault, naming the field, for a geometry that the GPU's kernels do not take."""
    for name, wanted in (("head_dim", 512), ("qk_rope_head_dim", 64), ("index_head_dim", 128)):
        if getattr(config, name) != wanted:
            raise ConfigFault(_misfit(name, getattr(config, name), f"{wanted}"))
    for name, most in (("num_attention_heads", 128), ("index_n_heads", 64), ("hc_mult", 4)):
        if getattr(config, name) > most:
            raise ConfigFault(_misfit(name, getattr(config, name), f"at most {most}"))
    for name in ("hidden_size", "q_lora_rank", "o_lora_rank", "moe_intermediate_size"):
        if getattr(config, name) % WEIGHT_BLOCK:
            raise ConfigFault(_misfit(name, getattr(config, name), f"a multiple of {WEIGHT_BLOCK}"))


def _misfit(name: str, value: int, wanted: str) -> str:
    return f"{name} is {value}, and the network on a GPU needs {wanted}; use --device cpu"


def _check_geometry(config: ModelConfig) -> None:
    rope = config.qk_rope_head_dim
    if rope % 2:
        raise ConfigFault(f"qk_rope_head_dim must be even, got {rope}")
    for name, width in (("head_dim", config.head_dim), ("index_head_dim", config.index_head_dim)):
        if width < rope:
            raise ConfigFault(f"{name} must be at least qk_rope_head_dim {rope}, got {width}")
    if config.head_dim % 2:
        raise ConfigFault(f"head_dim must be even, got {config.head_dim}")
    for name in ("rope_theta", "compress_rope_theta"):
        if getattr(config, name) <= 1:
            raise ConfigFault(f"{name} must be above 1, got {getattr(config, name):g}")
    if config.num_attention_heads % config.o_groups:
        raise ConfigFault(
            f"o_groups must divide num_attention_heads {config.num_attention_heads}, "
            f"got {config.o_groups}"
        )
    for name, value, most in (
        ("vocab_size", config.vocab_size, MAX_VOCAB_SIZE),
        ("index_topk", config.index_topk, MAX_INDEX_TOPK),
    ):
        if value > most:
            raise ConfigFault(f"{name} must be at most {most}, got {value}")
    if config.num_experts_per_tok > config.n_routed_experts:
        raise ConfigFault(
            f"num_experts_per_tok must be at most n_routed_experts {config.n_routed_experts}, "
            f"got {config.num_experts_per_tok}"
        )
