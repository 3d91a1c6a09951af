"""GptOssConfig: what `config.json` of gpt-oss says, read strictly.

Whatever the network does not compute is refused with one sentence that names the field.
"""

from dataclasses import dataclass
from typing import Any

from layers.models.attention_fields import (
    read_heads,
    read_sliding,
    require_fixed,
    text_architectures,
)
from layers.models.json_fields import (
    ConfigFault,
    int_from,
    json_object,
    overridden,
    positive_int,
    positive_number,
    require,
)
from layers.models.kernel_sizes import check_head_dim, check_sizes
from layers.models.rope_fields import RopeFields, read_rope
from layers.models.token_ids import end_ids, token_id, vocab_size
from layers.weights.quant import FP4_GROUP

__all__ = ["ExpertFields", "GptOssConfig", "check_geometry_of_kernels", "parse_config"]

# Channels of a head that kernels attend windows with: of 192 they take 96 keys at a time, which do
# not begin where pages do.
_HEAD_DIMS = (64, 128, 256)

_FIXED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("hidden_act", ("silu",)),
    ("attention_bias", (True,)),
    ("tie_word_embeddings", (True, False)),
    ("auto_map", (None,)),
)
_KNOWN = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps"),
        *("max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters"),
        *("eos_token_id", "bos_token_id", "sliding_window", "layer_types", "swiglu_limit"),
        *("swiglu_alpha", "num_local_experts", "num_experts_per_tok", "quantization_config"),
        *("architectures", "model_type", *(name for name, _ in _FIXED)),
    }
)


@dataclass(frozen=True, slots=True)
class ExpertFields:
    """Routed experts.

    chosen  experts of a token
    inner   channels inside an expert
    limit   clamp of gates and of what they gate
    alpha   of the gates' sigmoid
    packed  files hold mxfp4 codes
    """

    count: int
    chosen: int
    inner: int
    limit: float
    alpha: float
    packed: bool


@dataclass(frozen=True, slots=True)
class GptOssConfig:
    """Sizes and constants of one network.

    sliding          of each layer, whether it attends a window alone
    window           tokens that such a layer attends, a token's own among them
    tied             the output head is the embedding
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
    eps: float
    rope: RopeFields
    sliding: tuple[bool, ...]
    window: int
    tied: bool
    experts: ExpertFields
    context_tokens: int
    eos_token_ids: tuple[int, ...]


def parse_config(
    raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]
) -> GptOssConfig:
    """Return the configuration that config.json and generation_config.json hold, both parsed.

    override  entries that replace those of `raw`
    Raises ConfigFault, naming the field, for whatever cannot be run.
    """
    raw = overridden(raw, override, known=_KNOWN)
    require(raw, "model_type", ("gpt_oss",))
    require_fixed(raw, _FIXED)
    if raw.get("rope_scaling") is None and raw.get("rope_parameters") is None:
        # transformers takes YaRN where both are missing, other readers plain rope.
        raise ConfigFault("rope_scaling is missing")
    vocab, layers = vocab_size(raw), positive_int(raw, "num_hidden_layers")
    heads, key_heads, head_dim = read_heads(raw)
    if raw.get("bos_token_id") is not None:
        token_id(raw["bos_token_id"], "bos_token_id", vocab)
    return GptOssConfig(
        model_type="gpt_oss",
        architectures=text_architectures(raw, "GptOssForCausalLM"),
        vocab_size=vocab,
        hidden_size=positive_int(raw, "hidden_size"),
        num_layers=layers,
        heads=heads,
        key_heads=key_heads,
        head_dim=head_dim,
        eps=positive_number(raw, "rms_norm_eps"),
        rope=read_rope(raw),
        sliding=read_sliding(raw, layers, every=2),
        # Before a token it sees one less than that.
        window=int_from(raw, "sliding_window", 2),
        tied=bool(raw.get("tie_word_embeddings", False)),
        experts=_experts(raw),
        context_tokens=positive_int(raw, "max_position_embeddings"),
        eos_token_ids=end_ids(raw, generation, vocab),
    )


def check_geometry_of_kernels(config: GptOssConfig) -> None:
    """Raise ConfigFault, naming the field, for sizes that the kernels on a GPU do not take."""
    check_head_dim(config.head_dim, _HEAD_DIMS)
    check_sizes(
        {"hidden_size": config.hidden_size, "intermediate_size": config.experts.inner},
        {"num_local_experts": config.experts.count, "vocab_size": config.vocab_size},
    )


def _experts(raw: dict[str, Any]) -> ExpertFields:
    count, chosen = positive_int(raw, "num_local_experts"), positive_int(raw, "num_experts_per_tok")
    if chosen > count:
        raise ConfigFault(
            f"num_experts_per_tok must be at most num_local_experts {count}, got {chosen}"
        )
    inner, packed = positive_int(raw, "intermediate_size"), False
    if raw.get("quantization_config") is not None:
        quantisation = json_object(raw["quantization_config"], "quantization_config")
        require(quantisation, "quant_method", ("mxfp4",), "quantization_config.")
        packed = True
        for name in ("hidden_size", "intermediate_size"):
            if positive_int(raw, name) % FP4_GROUP:
                raise ConfigFault(f"{name} must be a multiple of {FP4_GROUP}, got {raw[name]}")
    return ExpertFields(
        count=count,
        chosen=chosen,
        inner=inner,
        limit=positive_number({"swiglu_limit": 7.0, **raw}, "swiglu_limit"),
        alpha=positive_number({"swiglu_alpha": 1.702, **raw}, "swiglu_alpha"),
        packed=packed,
    )
