"""The network: a layer's four norms, heads that are normed, two ropes, a gate of GELU.

    h = h + norm(attention(norm(h)));  h = h + norm(feed_forward(norm(h)));  logits = head(norm(h))

Norms have the weight 1 + w, and the embedding is multiplied by the square root of its width. The
stream is float32 whatever the dtype of matrices. Names of weights are the published ones.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from jit_kernels.gelu_mul import gelu_mul
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope_halves import rope_halves
from layers.blocks.embedding import Embedding
from layers.blocks.norm import RmsNorm
from layers.kinds import PlainKinds
from layers.linear.contract import Named
from layers.linear.summed import SummedLinear
from layers.models.gemma3.config import GemmaConfig
from layers.models.gpt_oss.step import WindowStep
from layers.parallel.ranks import Ranks, Undealt
from layers.parallel.shares import Size

__all__ = ["GemmaDecoder"]


class OffsetNorm(RmsNorm):
    """A norm whose weight is 1 + what files hold; `weight` is what they hold."""

    def __call__(self, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        """Return the normed `x`; see `RmsNorm`."""
        return rms_norm(x, self.weight + 1.0, eps=self.eps, out_dtype=out_dtype)


class Attention:
    """Grouped-query attention over everything or a window, of normed heads."""

    def __init__(self, config: GemmaConfig, layer: int, kinds: PlainKinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        self._layer, self._scale, width = layer, config.scale, config.head_dim
        heads = ranks.shares.heads(config.heads)
        groups = ranks.shares.key_heads(config.key_heads)
        self._heads, self._groups, self._width = heads.count, groups.count, width
        parts: dict[str, Size] = {"q_proj": heads.times(width)}
        parts |= {name: groups.times(width) for name in ("k_proj", "v_proj")}
        self._qkv = kinds.projection(config.hidden_size, parts)
        self._norms = [
            OffsetNorm(width, eps=config.eps, name=name, device=kinds.device)
            for name in ("q_norm", "k_norm")
        ]
        self._out = SummedLinear(
            kinds, heads.times(width), "o_proj", config.hidden_size, ranks=ranks
        )

    def __call__(self, x: Tensor, step: WindowStep) -> Tensor:
        """Write keys and values, and return the block's result, [T, d] float32; `x` is normed."""
        made = self._qkv(self._qkv.rows(x)).unflatten(1, (-1, self._width))
        q, keys, values = made.split([self._heads, self._groups, self._groups], 1)
        q, keys = (
            norm(heads.contiguous()) for norm, heads in zip(self._norms, (q, keys), strict=True)
        )
        for heads in (q, keys):
            rope_halves(heads, step.rotation(self._layer))
        read = step.attend(self._layer, q, keys, values, scale=self._scale)
        return self._out.of_rows(read.flatten(1))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for part in (self._qkv, *self._norms, self._out):
            yield from part.named_weights(prefix)


class FeedForward:
    """A product gated by GELU."""

    def __init__(self, config: GemmaConfig, kinds: PlainKinds, ranks: Ranks) -> None:
        """Allocate the weights."""
        share = ranks.shares.inner(config.inner, blocks=False)
        self._in = kinds.projection(config.hidden_size, {"gate_proj": share, "up_proj": share})
        self._out = SummedLinear(kinds, share, "down_proj", config.hidden_size, ranks=ranks)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's result, [T, d] float32; `x` is normed."""
        return self._out.of_rows(gelu_mul(self._in(self._in.rows(x))))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._in.named_weights(prefix)
        yield from self._out.named_weights(prefix)


class Layer:
    """Attention and a feed-forward block, each between two norms."""

    def __init__(self, config: GemmaConfig, layer: int, kinds: PlainKinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        self._attention = Attention(config, layer, kinds, ranks)
        self._feed_forward = FeedForward(config, kinds, ranks)
        self._norms = [
            OffsetNorm(config.hidden_size, eps=config.eps, name=name, device=kinds.device)
            for name in (
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            )
        ]

    def __call__(self, h: Tensor, step: WindowStep) -> Tensor:
        """Return the stream behind the layer, [T, d] float32."""
        before, behind, between, last = self._norms
        h = h + behind(self._attention(before(h), step))
        return h + last(self._feed_forward(between(h)))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for norm in self._norms:
            yield from norm.named_weights(prefix)
        yield from self._attention.named_weights(f"{prefix}self_attn.")
        yield from self._feed_forward.named_weights(f"{prefix}mlp.")


class GemmaDecoder:
    """Embedding, layers and head; a `layers.models.wired.Wired`."""

    def __init__(self, config: GemmaConfig, kinds: PlainKinds, ranks: Ranks) -> None:
        """Allocate all weights that this rank holds."""
        self._ranks, self._tied, width = ranks, config.tied, config.hidden_size
        share = ranks.shares.vocabulary(config.vocab_size)
        self._embedding = Embedding(
            share, width, name="model.embed_tokens", dtype=kinds.stored, device=kinds.device
        )
        # The published code rounds it to the dtype of the embedding.
        self._scale = float(torch.tensor(width**0.5, dtype=kinds.stored))
        self._layers = [Layer(config, i, kinds, ranks) for i in range(config.num_layers)]
        self._norm = OffsetNorm(width, eps=config.eps, name="model.norm", device=kinds.device)
        self._head = kinds.head(width, {"lm_head": share})
        if self._tied:
            self._head.weight = self._embedding.weight

    def run(
        self, input_ids: Tensor, step: WindowStep, halfway: Callable[[], None] | None = None
    ) -> Tensor:
        """Return the stream behind the last layer, [T, d] float32; see `Wired`."""
        rows = self._embedding(input_ids, Undealt(self._ranks))
        h = rows.to(torch.float32) * self._scale
        for i, layer in enumerate(self._layers):
            if halfway is not None and i == (len(self._layers) + 1) // 2:
                halfway()
            h = layer(h, step)
        return h

    def logits(self, h: Tensor) -> Tensor:
        """Return the logits of tokens, [T, vocab] float32."""
        return self._ranks.gathered(self._head(self._head.rows(h, self._norm)))

    def named_weights(self) -> Named:
        """Yield (name in published files, where it goes) of every weight."""
        yield from self._embedding.named_weights()
        for i, layer in enumerate(self._layers):
            yield from layer.named_weights(f"model.layers.{i}.")
        yield from self._norm.named_weights("")
        if not self._tied:
            yield from self._head.named_weights("")
