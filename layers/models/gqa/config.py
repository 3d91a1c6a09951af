"""GqaConfig: what `config.json` of these families says, read strictly.

The families differ in where biases and norms are; `_TRAITS` has that, everything else is in the
file. Whatever the network does not compute is refused with one sentence that names the field.
"""

from dataclasses import dataclass
from typing import Any, cast

from layers.models.attention_fields import layer_windows, require_fixed, text_architectures
from layers.models.json_fields import (
    ConfigFault,
    int_from,
    overridden,
    positive_int,
    positive_number,
    present,
    require,
)
from layers.models.kernel_sizes import check_head_dim, check_sizes
from layers.models.quantisation_fields import check_quantisation
from layers.models.rope_fields import RopeFields, read_rope
from layers.models.token_ids import end_ids, token_id, vocab_size

__all__ = ["ExpertFields", "GqaConfig", "check_geometry_of_kernels", "parse_config"]


@dataclass(frozen=True, slots=True)
class _Traits:
    """What a model_type says without a field.

    architecture  the one that generates text
    qkv_bias      projections of queries, keys and values always have biases; else a field says so
    head_norms    heads of queries and keys are normed
    windowed      `sliding_window` holds unless it is null; else `use_sliding_window` says so
    """

    architecture: str
    qkv_bias: bool = False
    head_norms: bool = False
    windowed: bool = False


_TRAITS = {
    "llama": _Traits("LlamaForCausalLM"),
    "mistral": _Traits("MistralForCausalLM", windowed=True),
    "qwen2": _Traits("Qwen2ForCausalLM", qkv_bias=True),
    "qwen3": _Traits("Qwen3ForCausalLM", head_norms=True),
    "qwen3_moe": _Traits("Qwen3MoeForCausalLM", head_norms=True),
}
_FIXED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("hidden_act", ("silu",)),
    ("pretraining_tp", (1, None)),
)
_KNOWN = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps"),
        *("max_position_embeddings", "tie_word_embeddings", "attention_bias", "mlp_bias"),
        *("rope_theta", "rope_scaling", "rope_parameters", "eos_token_id", "bos_token_id"),
        *(
            "num_experts",
            "num_local_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "norm_topk_prob",
        ),
        *("decoder_sparse_step", "mlp_only_layers", "hidden_act", "sliding_window"),
        *("use_sliding_window", "max_window_layers", "layer_types"),
        *("architectures", "model_type"),
    }
)


@dataclass(frozen=True, slots=True)
class ExpertFields:
    """Routed experts.

    chosen      experts of a token
    inner       channels inside an expert
    normalised  weights are the softmax over the chosen experts, else over all
    layers      which layers have experts
    """

    count: int
    chosen: int
    inner: int
    normalised: bool
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class GqaConfig:
    """Sizes and constants of one network.

    inner            channels inside the feed-forward blocks without experts
    qkv_bias         projections of queries, keys and values have biases
    output_bias      the projection of what heads have read has one
    mlp_bias         the projections of feed-forward blocks have biases
    head_norms       heads of queries and keys are normed before they turn
    windows          of each layer the tokens that it attends, a token's own among them; 0: all
    tied             the output head is the embedding
    experts          None: no layer has any
    eos_token_ids    ids of config.json, then those that only generation_config.json has
    """

    model_type: str
    architectures: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    num_layers: int
    heads: int
    key_heads: int
    head_dim: int
    inner: int
    eps: float
    rope: RopeFields
    context_tokens: int
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norms: bool
    windows: tuple[int, ...]
    tied: bool
    experts: ExpertFields | None
    eos_token_ids: tuple[int, ...]


def parse_config(
    raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]
) -> GqaConfig:
    """Return the configuration that config.json and generation_config.json hold, both parsed.

    override  entries that replace those of `raw`
    Raises ConfigFault, naming the field, for whatever cannot be run.
    """
    raw = overridden(raw, override, known=_KNOWN)
    require(raw, "model_type", tuple(_TRAITS))
    kind = cast(str, raw["model_type"])
    traits = _TRAITS[kind]
    _refuse_others(raw)
    vocab, layers = vocab_size(raw), positive_int(raw, "num_hidden_layers")
    heads, head_dim = _heads(raw, kind)
    bias = _flag(raw, "attention_bias") if kind != "mistral" and not traits.qkv_bias else False
    if raw.get("bos_token_id") is not None:
        token_id(raw["bos_token_id"], "bos_token_id", vocab)
    return GqaConfig(
        model_type=kind,
        architectures=text_architectures(raw, traits.architecture),
        vocab_size=vocab,
        hidden_size=positive_int(raw, "hidden_size"),
        num_layers=layers,
        heads=heads[0],
        key_heads=heads[1],
        head_dim=head_dim,
        inner=positive_int(raw, "intermediate_size"),
        eps=positive_number(raw, "rms_norm_eps"),
        rope=read_rope(raw),
        context_tokens=positive_int(raw, "max_position_embeddings"),
        qkv_bias=bias or traits.qkv_bias,
        output_bias=bias,
        mlp_bias=_flag(raw, "mlp_bias") if kind == "llama" else False,
        head_norms=traits.head_norms,
        windows=_windows(raw, kind, layers),
        tied=_flag(raw, "tie_word_embeddings"),
        experts=_experts(raw, layers) if kind == "qwen3_moe" else None,
        eos_token_ids=end_ids(raw, generation, vocab),
    )


def check_geometry_of_kernels(config: GqaConfig) -> None:
    """Raise ConfigFault, naming the field, for sizes that the kernels on a GPU do not take."""
    check_head_dim(config.head_dim)
    if any(config.windows):
        raise ConfigFault(f"sliding_window {max(config.windows)} is attended on the CPU alone")
    inner = {"intermediate_size": config.inner}
    if config.experts is not None:
        inner = {"moe_intermediate_size": config.experts.inner}
    check_sizes({"hidden_size": config.hidden_size, **inner}, {"vocab_size": config.vocab_size})


def _refuse_others(raw: dict[str, Any]) -> None:
    """Raise ConfigFault for what would be silently wrong if it were passed over."""
    check_quantisation(raw)
    if raw.get("auto_map") is not None:
        raise ConfigFault(
            "auto_map asks for code that comes with the checkpoint, which is never run"
        )
    require_fixed(raw, _FIXED)


def _windows(raw: dict[str, Any], kind: str, layers: int) -> tuple[int, ...]:
    """Return how many tokens each layer attends; 0: all that there are."""
    used = kind != "llama" and (_TRAITS[kind].windowed or _flag(raw, "use_sliding_window"))
    windows = layer_windows(raw, layers, used=used, by_layer=kind in ("qwen2", "qwen3"))
    # A window that no context fills is none.
    context = positive_int(raw, "max_position_embeddings")
    return tuple(0 if window >= context else window for window in windows)


def _heads(raw: dict[str, Any], kind: str) -> tuple[tuple[int, int], int]:
    """Return the heads of queries and of keys, and their width."""
    heads, hidden = positive_int(raw, "num_attention_heads"), positive_int(raw, "hidden_size")
    given = {name: value for name, value in raw.items() if value is not None}
    key_heads = positive_int({"num_key_value_heads": heads, **given}, "num_key_value_heads")
    if heads % key_heads:
        raise ConfigFault(
            f"num_key_value_heads must divide num_attention_heads {heads}, got {key_heads}"
        )
    if "head_dim" not in given and kind == "qwen3":
        raise ConfigFault("head_dim is missing")
    if "head_dim" not in given and hidden % heads:
        raise ConfigFault(f"num_attention_heads must divide hidden_size {hidden}, got {heads}")
    width = positive_int({"head_dim": hidden // heads, **given}, "head_dim")
    if width % 2:
        raise ConfigFault(f"head_dim must be even, got {width}")
    return (heads, key_heads), width


def _experts(raw: dict[str, Any], layers: int) -> ExpertFields:
    # transformers 5 writes the other name.
    name = "num_local_experts" if "num_experts" not in raw else "num_experts"
    count, chosen = positive_int(raw, name), positive_int(raw, "num_experts_per_tok")
    if chosen > count:
        raise ConfigFault(f"num_experts_per_tok must be at most {name} {count}, got {chosen}")
    step = positive_int({"decoder_sparse_step": 1, **raw}, "decoder_sparse_step")
    dense: Any = raw.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ConfigFault(f"mlp_only_layers must be a list, got {dense!r}")
    for layer in cast(list[Any], dense):
        int_from({"mlp_only_layers": layer}, "mlp_only_layers", 0)
    sparse = {layer for layer in range(layers) if (layer + 1) % step == 0}
    return ExpertFields(
        count=count,
        chosen=chosen,
        inner=positive_int(raw, "moe_intermediate_size"),
        normalised=_flag(raw, "norm_topk_prob"),
        layers=frozenset(sparse - set(cast(list[int], dense))),
    )


def _flag(raw: dict[str, Any], name: str) -> bool:
    """Return a boolean field; false where it is missing or null."""
    value: Any = present({name: None, **raw}, name)
    if value is not None:
        require(raw, name, (True, False))
    return bool(value)
