"""MlaConfig: what `config.json` of these families says, read strictly.

V2 and V3 differ in how they route, V3.2 is V3 with an indexer; all else is in the file. Whatever
the network does not compute is refused with one sentence that names the field. The code that
`auto_map` names, which published files have, is never run.
"""

from dataclasses import dataclass
from typing import Any, cast

from jit_kernels.indexer_queries import HEADS as INDEX_HEADS
from jit_kernels.indexer_queries import WIDTHS
from jit_kernels.paged_sparse import HEADS, LATENT, WIDTH
from jit_kernels.select_topk import MAX_TOP_K
from layers.models.attention_fields import text_architectures
from layers.models.json_fields import (
    ConfigFault,
    int_from,
    overridden,
    positive_int,
    positive_number,
    require,
    string_list,
)
from layers.models.quantisation_fields import check_quantisation
from layers.models.rope_fields import RopeFields, read_rope
from layers.models.token_ids import end_ids, token_id, vocab_size

__all__ = [
    "ExpertFields",
    "HeadFields",
    "IndexFields",
    "MlaConfig",
    "check_geometry_of_kernels",
    "parse_config",
]

_V2, _V3, _V32 = "deepseek_v2", "deepseek_v3", "deepseek_v32"
_ARCHITECTURES = {
    _V2: "DeepseekV2ForCausalLM",
    _V3: "DeepseekV3ForCausalLM",
    _V32: "DeepseekV32ForCausalLM",
}
# Fields with the values that are computed, where they are there.
_FIXED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("hidden_act", ("silu",)),
    ("mlp_bias", (False, None)),
    ("pretraining_tp", (1, None)),
)
# Channels of latents and turned ones that kernels of attention take, and their unit.
_MOST_LATENT, _MOST_TURNED, _UNIT = 512, 128, 16
# Channels that products on a GPU take at once, and rows of weights that copies do.
_DEPTH, _ROWS = 64, 8
# What versions of transformers call a layer of V3.2.
_INDEXED = ("indexed_attention", "deepseek_sparse_attention")
_Routing = tuple[tuple[str, tuple[object, ...]], ...]
_BY_SIGMOID: _Routing = (("scoring_func", ("sigmoid",)), ("topk_method", ("noaux_tc",)))
_ROUTING: dict[str, _Routing] = {
    _V2: (
        ("scoring_func", ("softmax",)),
        ("topk_method", ("greedy", "group_limited_greedy")),
        # DeepSeek's code then normalises and does not scale, that of transformers passes it over.
        ("norm_topk_prob", (False,)),
    ),
    _V3: _BY_SIGMOID,
    _V32: _BY_SIGMOID,
}
_KNOWN = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim"),
        *("qk_rope_head_dim", "v_head_dim", "rms_norm_eps", "max_position_embeddings"),
        *("rope_theta", "rope_scaling", "rope_parameters", "rope_interleave"),
        *("attention_bias", "tie_word_embeddings"),
        *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
        *("moe_layer_freq", "first_k_dense_replace", "n_group", "topk_group", "topk_method"),
        *("scoring_func", "norm_topk_prob", "routed_scaling_factor"),
        *("index_n_heads", "index_head_dim", "index_topk", "indexer_rope_interleave"),
        *("bos_token_id", "eos_token_id", "quantization_config", "architectures", "model_type"),
    }
)


@dataclass(frozen=True, slots=True)
class HeadFields:
    """Widths of attention: a query is [plain, turned], a record is [latent, turned].

    q_rank  channels of the latent that queries are made of, None: they are made of the stream
    """

    count: int
    plain: int
    turned: int
    value: int
    latent: int
    q_rank: int | None


@dataclass(frozen=True, slots=True)
class IndexFields:
    """The indexer of a layer, which chooses the positions that a token attends.

    width        channels of a key and of each head; the first `HeadFields.turned` are rotated
    chosen       positions that a token attends, all where there are no more
    interleaved  neighbouring channels turn together, else those of two halves
    """

    heads: int
    width: int
    chosen: int
    interleaved: bool


@dataclass(frozen=True, slots=True)
class ExpertFields:
    """Routed and shared experts.

    chosen      experts of a token
    inner       channels inside an expert
    shared      channels inside all shared experts together, 0: there are none
    groups      of routed experts, of which a token goes to `kept`
    biased      scores are sigmoids that a correction bias is added to for choosing, else a softmax
    normalised  weights are divided by their sum over the chosen experts
    scale       of the weights
    layers      which layers have experts
    """

    count: int
    chosen: int
    inner: int
    shared: int
    groups: int
    kept: int
    biased: bool
    normalised: bool
    scale: float
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """Sizes and constants of one network.

    inner            channels inside the feed-forward blocks without experts
    interleaved      neighbouring channels turn together, else those of two halves
    biased           products that make latents and results of the stream have biases
    tied             the output head is the embedding
    index            None: a token attends all positions up to its own
    experts          None: no layer has any
    eos_token_ids    ids of config.json, then those that only generation_config.json has
    """

    model_type: str
    architectures: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    num_layers: int
    heads: HeadFields
    inner: int
    eps: float
    rope: RopeFields
    interleaved: bool
    biased: bool
    tied: bool
    context_tokens: int
    index: IndexFields | None
    experts: ExpertFields | None
    eos_token_ids: tuple[int, ...]

    @property
    def logit_scale(self) -> float:
        """Return the factor of the products of queries and keys."""
        return (self.heads.plain + self.heads.turned) ** -0.5 * self.rope.logit_factor


def parse_config(
    raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]
) -> MlaConfig:
    """Return the configuration that config.json and generation_config.json hold, both parsed.

    override  entries that replace those of `raw`
    Raises ConfigFault, naming the field, for whatever cannot be run.
    """
    raw = overridden(raw, override, known=_KNOWN)
    require(raw, "model_type", tuple(_ARCHITECTURES))
    kind = cast(str, raw["model_type"])
    _refuse_others(raw)
    heads = _heads(raw)
    vocab, layers = vocab_size(raw), positive_int(raw, "num_hidden_layers")
    if raw.get("bos_token_id") is not None:
        token_id(raw["bos_token_id"], "bos_token_id", vocab)
    return MlaConfig(
        model_type=kind,
        architectures=text_architectures(raw, _ARCHITECTURES[kind]),
        vocab_size=vocab,
        hidden_size=positive_int(raw, "hidden_size"),
        num_layers=layers,
        heads=heads,
        inner=positive_int(raw, "intermediate_size"),
        eps=positive_number(raw, "rms_norm_eps"),
        rope=read_rope(raw, mscale=True),
        interleaved=_flag(raw, "rope_interleave", default=True),
        biased=_flag(raw, "attention_bias"),
        tied=_flag(raw, "tie_word_embeddings"),
        context_tokens=positive_int(raw, "max_position_embeddings"),
        index=_index(raw, heads) if kind == _V32 else None,
        experts=None if raw.get("n_routed_experts") is None else _experts(raw, kind, layers),
        eos_token_ids=end_ids(raw, generation, vocab),
    )


def check_geometry_of_kernels(config: MlaConfig) -> None:
    """Raise ConfigFault, naming the field, for what the kernels on a GPU do not take."""
    if config.index is not None:
        _check_index(config.heads, config.index)
    if config.biased:
        raise ConfigFault("attention_bias of latents runs on the CPU: use --device cpu")
    heads, experts = config.heads, config.experts
    for name, size, most in (
        ("kv_lora_rank", heads.latent, _MOST_LATENT),
        ("qk_rope_head_dim", heads.turned, _MOST_TURNED),
    ):
        if size > most:
            raise ConfigFault(f"{name} is {size}, and on a GPU it must be at most {most}")
    for name, size, unit in (
        ("kv_lora_rank", heads.latent, _UNIT),
        ("qk_rope_head_dim", heads.turned, _UNIT),
        ("q_lora_rank", heads.q_rank or 0, _DEPTH),
        ("num_attention_heads * v_head_dim", heads.count * heads.value, _DEPTH),
        ("hidden_size", config.hidden_size, _DEPTH),
        ("intermediate_size", config.inner, _DEPTH),
        ("moe_intermediate_size", 0 if experts is None else experts.inner, _DEPTH),
        ("vocab_size", config.vocab_size, _ROWS),
        ("index_n_heads", 0 if config.index is None else config.index.heads, _ROWS),
    ):
        if size % unit:
            raise ConfigFault(f"{name} is {size}, and on a GPU it must be a multiple of {unit}")


def _check_index(heads: HeadFields, index: IndexFields) -> None:
    """Raise ConfigFault, naming the field, where kernels that choose positions do not fit."""
    for name, size, wanted in (
        ("kv_lora_rank", heads.latent, (LATENT,)),
        ("qk_rope_head_dim", heads.turned, (WIDTH - LATENT,)),
        ("index_head_dim", index.width, WIDTHS),
    ):
        if size not in wanted:
            told = " or ".join(map(str, wanted))
            raise ConfigFault(f"{name} is {size}, and with an indexer on a GPU it must be {told}")
    for name, size, most in (
        ("num_attention_heads", heads.count, HEADS),
        ("index_n_heads", index.heads, INDEX_HEADS[-1]),
    ):
        if size > most:
            raise ConfigFault(
                f"{name} is {size}, and with an indexer on a GPU it must be at most {most}"
            )


def _refuse_others(raw: dict[str, Any]) -> None:
    """Raise ConfigFault for what would be silently wrong if it were passed over."""
    for name, allowed in _FIXED:
        if name in raw:
            require(raw, name, allowed)
    check_quantisation(raw)


def _heads(raw: dict[str, Any]) -> HeadFields:
    turned = positive_int(raw, "qk_rope_head_dim")
    if turned % 2:
        raise ConfigFault(f"qk_rope_head_dim must be even, got {turned}")
    q_rank = raw.get("q_lora_rank")
    return HeadFields(
        count=positive_int(raw, "num_attention_heads"),
        plain=positive_int(raw, "qk_nope_head_dim"),
        turned=turned,
        value=positive_int(raw, "v_head_dim"),
        latent=positive_int(raw, "kv_lora_rank"),
        q_rank=None if q_rank is None else positive_int(raw, "q_lora_rank"),
    )


def _index(raw: dict[str, Any], heads: HeadFields) -> IndexFields:
    if raw.get("layer_types") is not None:
        string_list(raw, "layer_types", _INDEXED)
    if heads.q_rank is None:
        raise ConfigFault("q_lora_rank must be an integer: the indexer reads that latent")
    width, chosen = positive_int(raw, "index_head_dim"), positive_int(raw, "index_topk")
    if width < heads.turned:
        raise ConfigFault(
            f"index_head_dim must be at least qk_rope_head_dim {heads.turned}, got {width}"
        )
    if chosen > MAX_TOP_K:
        raise ConfigFault(f"index_topk must be at most {MAX_TOP_K}, got {chosen}")
    return IndexFields(
        heads=positive_int(raw, "index_n_heads"),
        width=width,
        chosen=chosen,
        interleaved=_flag(raw, "indexer_rope_interleave"),
    )


def _experts(raw: dict[str, Any], kind: str, layers: int) -> ExpertFields:
    for name, allowed in _ROUTING[kind]:
        if raw.get(name) is not None:
            require(raw, name, allowed)
    count, chosen = positive_int(raw, "n_routed_experts"), positive_int(raw, "num_experts_per_tok")
    groups, kept = _groups(raw, kind, count)
    if chosen > kept * count // groups:
        raise ConfigFault(
            f"num_experts_per_tok must be at most {kept * count // groups}, which topk_group "
            f"leaves of {count}, got {chosen}"
        )
    scale = positive_number({"routed_scaling_factor": 1.0, **raw}, "routed_scaling_factor")
    inner = positive_int(raw, "moe_intermediate_size")
    given = {name: value for name, value in raw.items() if value is not None}
    every = positive_int({"moe_layer_freq": 1, **given}, "moe_layer_freq")
    first = int_from({"first_k_dense_replace": 0, **given}, "first_k_dense_replace", 0)
    return ExpertFields(
        count=count,
        chosen=chosen,
        inner=inner,
        shared=inner * int_from({"n_shared_experts": 0, **given}, "n_shared_experts", 0),
        groups=groups,
        kept=kept,
        biased=kind != _V2,
        normalised=_flag(raw, "norm_topk_prob"),
        scale=scale,
        layers=_expert_layers(raw, first, every, layers),
    )


def _expert_layers(raw: dict[str, Any], first: int, every: int, layers: int) -> frozenset[int]:
    """Return which layers have experts: transformers may list them, published files count."""
    if raw.get("mlp_layer_types") is None:
        return frozenset(layer for layer in range(first, layers) if layer % every == 0)
    kinds = string_list(raw, "mlp_layer_types", ("dense", "sparse"))
    if len(kinds) < layers:
        raise ConfigFault(f"mlp_layer_types must name {layers} layers, got {len(kinds)}")
    return frozenset(layer for layer in range(layers) if kinds[layer] == "sparse")


def _groups(raw: dict[str, Any], kind: str, experts: int) -> tuple[int, int]:
    """Return how many groups of experts there are, and how many a token goes to."""
    if kind == _V2 and raw.get("topk_method") != "group_limited_greedy":
        return 1, 1
    groups, kept = positive_int(raw, "n_group"), positive_int(raw, "topk_group")
    least = 1 if kind == _V2 else 2
    if experts % groups or experts // groups < least:
        raise ConfigFault(
            f"n_group must divide n_routed_experts {experts} into groups of at least {least}, "
            f"got {groups}"
        )
    if kept > groups:
        raise ConfigFault(f"topk_group must be at most n_group {groups}, got {kept}")
    return groups, kept


def _flag(raw: dict[str, Any], name: str, *, default: bool = False) -> bool:
    """Return a boolean field; the default where it is missing or null."""
    if raw.get(name) is None:
        return default
    require(raw, name, (True, False))
    return bool(raw[name])
