"""GemmaConfig: what `config.json` of Gemma 3's text models says, read strictly.

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
    present,
    require,
)
from layers.models.quantisation_fields import check_quantisation
from layers.models.rope_fields import RopeFields, read_rope
from layers.models.token_ids import end_ids, token_id, vocab_size

__all__ = ["GemmaConfig", "parse_config"]

_FIXED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("hidden_activation", ("gelu_pytorch_tanh",)),
    ("attention_bias", (False,)),
    ("attn_logit_softcapping", (None,)),
    ("final_logit_softcapping", (None,)),
    ("use_bidirectional_attention", (False, None)),
    ("auto_map", (None,)),
    ("tie_word_embeddings", (True, False)),
)
_PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")
_KNOWN = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps"),
        *("max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters"),
        *("rope_local_base_freq", "eos_token_id", "bos_token_id", "sliding_window"),
        *(
            "quantization_config",
            "layer_types",
            "query_pre_attn_scalar",
            "architectures",
            "model_type",
            *_PATTERNS,
        ),
        *(name for name, _ in _FIXED),
    }
)


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """Sizes and constants of one network.

    inner          channels inside the feed-forward blocks
    scale          of products of queries and keys
    ropes          of layers that attend everything, and of those with a window
    sliding        of each layer, whether it attends a window alone
    window         tokens that such a layer attends, a token's own among them
    tied           the output head is the embedding
    eos_token_ids  ids of config.json, then those that only generation_config.json has
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
    scale: float
    ropes: tuple[RopeFields, RopeFields]
    sliding: tuple[bool, ...]
    window: int
    tied: bool
    context_tokens: int
    eos_token_ids: tuple[int, ...]


def parse_config(
    raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]
) -> GemmaConfig:
    """Return the configuration that config.json and generation_config.json hold, both parsed.

    override  entries that replace those of `raw`
    Raises ConfigFault, naming the field, for whatever cannot be run.
    """
    raw = overridden(raw, override, known=_KNOWN)
    require(raw, "model_type", ("gemma3_text",))
    require_fixed(raw, _FIXED)
    check_quantisation(raw)
    vocab, layers = vocab_size(raw), positive_int(raw, "num_hidden_layers")
    heads, key_heads, head_dim = read_heads(raw)
    if raw.get("bos_token_id") is not None:
        token_id(raw["bos_token_id"], "bos_token_id", vocab)
    pattern = next((name for name in _PATTERNS if raw.get(name) is not None), None)
    return GemmaConfig(
        model_type="gemma3_text",
        architectures=text_architectures(raw, "Gemma3ForCausalLM"),
        vocab_size=vocab,
        hidden_size=positive_int(raw, "hidden_size"),
        num_layers=layers,
        heads=heads,
        key_heads=key_heads,
        head_dim=head_dim,
        inner=positive_int(raw, "intermediate_size"),
        eps=positive_number(raw, "rms_norm_eps"),
        scale=positive_number(raw, "query_pre_attn_scalar") ** -0.5,
        ropes=_ropes(raw),
        sliding=read_sliding(raw, layers, every=positive_int(raw, pattern) if pattern else 6),
        # Before a token it sees one less than that.
        window=int_from(raw, "sliding_window", 2),
        tied=bool(raw.get("tie_word_embeddings", True)),
        context_tokens=positive_int(raw, "max_position_embeddings"),
        eos_token_ids=end_ids(raw, generation, vocab),
    )


def _ropes(raw: dict[str, Any]) -> tuple[RopeFields, RopeFields]:
    """Return the ropes of full layers and of those with a window, in either spelling."""
    if raw.get("rope_parameters") is None:
        if raw.get("rope_theta") is None:
            raise ConfigFault("rope_theta is missing")
        base = positive_number(raw, "rope_local_base_freq")
        return read_rope(raw), read_rope({"rope_theta": base})
    both = json_object(raw["rope_parameters"], "rope_parameters")
    kinds = ("full_attention", "sliding_attention")
    full, sliding = (
        read_rope({**raw, "rope_parameters": present(both, kind, "rope_parameters.")})
        for kind in kinds
    )
    return full, sliding
