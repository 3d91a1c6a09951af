"""The network: attention over shared keys and a gated product, each with a norm and a residual.

    h = h + attention(norm(h));  h = h + feed_forward(norm(h));  logits = head(norm(h))

The residual stream and what matrices multiply are float32 whatever the dtype of matrices; experts
alone round what they multiply. Names of weights are the published ones.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from jit_kernels.rope_halves import rope_halves
from jit_kernels.route_softmax import route_softmax
from layers.blocks.embedding import Embedding
from layers.blocks.gated import FeedForward, Gated
from layers.blocks.norm import RmsNorm
from layers.experts.contract import ExpertSizes
from layers.experts.plain import PlainExperts
from layers.kinds import PlainKinds
from layers.linear.biased import BiasedLinear
from layers.linear.contract import Linear, Named
from layers.linear.summed import SummedLinear
from layers.models.gqa.config import ExpertFields, GqaConfig
from layers.models.gqa.step import PagedStep
from layers.parallel.ranks import Ranks, Undealt
from layers.parallel.shares import Size

__all__ = ["GqaNetwork"]


def _linear(
    kinds: PlainKinds, width: Size, parts: Mapping[str, Size], *, bias: bool = False
) -> Linear:
    product = kinds.projection(width, parts)
    return BiasedLinear(product, parts, kinds.device) if bias else product


class Attention:
    """Grouped-query attention over all earlier positions."""

    def __init__(self, config: GqaConfig, layer: int, kinds: PlainKinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        self._layer, width, shares = layer, config.head_dim, ranks.shares
        heads, groups = shares.heads(config.heads), shares.groups(config.key_heads)
        self._heads, self._groups, self._width = heads.count, groups.count, width
        parts: dict[str, Size] = {"q_proj": heads.times(width)}
        parts |= {name: groups.times(width) for name in ("k_proj", "v_proj")}
        self._qkv = _linear(kinds, config.hidden_size, parts, bias=config.qkv_bias)
        self._norms: list[RmsNorm] = []
        if config.head_norms:
            self._norms = [
                RmsNorm(width, eps=config.eps, name=name, device=kinds.device)
                for name in ("q_norm", "k_norm")
            ]
        self._out = SummedLinear(
            kinds,
            heads.times(width),
            "o_proj",
            config.hidden_size,
            bias=config.output_bias,
            ranks=ranks,
        )

    def __call__(self, h: Tensor, norm: RmsNorm, step: PagedStep) -> Tensor:
        """Write keys and values, and return the block's result, [T, d] float32."""
        made = self._qkv(self._qkv.rows(h, norm)).unflatten(1, (-1, self._width))
        turned = self._heads + self._groups
        if self._norms:
            q, k, _ = made.split([self._heads, self._groups, self._groups], 1)
            q, k = (own(x.contiguous()) for own, x in zip(self._norms, (q, k), strict=True))
            rope_halves(q, step.rotation)
            rope_halves(k, step.rotation)
        else:
            rope_halves(made[:, :turned], step.rotation)
            q, k = made[:, : self._heads], made[:, self._heads : turned]
        step.store(self._layer, k, made[:, turned:])
        return self._out.of_rows(step.attend(self._layer, q).flatten(1))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for part in (self._qkv, *self._norms, self._out):
            yield from part.named_weights(prefix)


class Mixture:
    """Routed experts; no expert is shared by all tokens."""

    def __init__(
        self, config: GqaConfig, fields: ExpertFields, kinds: PlainKinds, ranks: Ranks
    ) -> None:
        """Allocate the weights."""
        width, self._fields, self._ranks = config.hidden_size, fields, ranks
        self._gate = kinds.exact(width, {"gate": fields.count})
        self._dtype = kinds.stored
        sizes = ExpertSizes(
            ranks.shares.experts(fields.count),
            width,
            ranks.shares.inner(fields.inner, blocks=False),
            chosen=fields.chosen,
            limit=math.inf,
        )
        names = ("gate_proj", "up_proj", "down_proj")
        self._routed = PlainExperts(sizes, dtype=kinds.stored, device=kinds.device, names=names)

    def __call__(self, h: Tensor, norm: RmsNorm) -> Tensor:
        """Return the block's result; see `FeedForward`."""
        x = norm(h, out_dtype=self._dtype)
        rows = self._gate.rows(x)
        experts, weights = route_softmax(
            self._gate(rows), top_k=self._fields.chosen, normalised=self._fields.normalised
        )
        zero = torch.zeros((), device=h.device)
        return self._ranks.all_reduce(self._routed(x, rows, experts, weights, lambda: zero))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._gate.named_weights(prefix)
        yield from self._routed.named_weights(prefix)


class Layer:
    """Attention, then a gated product or a mixture of experts."""

    def __init__(self, config: GqaConfig, layer: int, kinds: PlainKinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        self._norms = [
            RmsNorm(config.hidden_size, eps=config.eps, name=name, device=kinds.device)
            for name in ("input_layernorm", "post_attention_layernorm")
        ]
        self._attention = Attention(config, layer, kinds, ranks)
        self._feed_forward: FeedForward
        if config.experts is not None and layer in config.experts.layers:
            self._feed_forward = Mixture(config, config.experts, kinds, ranks)
        else:
            self._feed_forward = Gated(
                config.hidden_size, config.inner, kinds, ranks, bias=config.mlp_bias
            )

    def __call__(self, h: Tensor, step: PagedStep) -> Tensor:
        """Return the stream behind the layer, [T, d] float32."""
        before, between = self._norms
        h = h + self._attention(h, before, step)
        return h + self._feed_forward(h, between)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for norm in self._norms:
            yield from norm.named_weights(prefix)
        yield from self._attention.named_weights(f"{prefix}self_attn.")
        yield from self._feed_forward.named_weights(f"{prefix}mlp.")


class GqaNetwork:
    """The whole network on one device."""

    def __init__(self, config: GqaConfig, kinds: PlainKinds, ranks: Ranks) -> None:
        """Allocate all weights that this rank holds."""
        self._ranks, width = ranks, config.hidden_size
        vocab = ranks.shares.vocabulary(config.vocab_size)
        self._embedding = Embedding(
            vocab,
            width,
            name="model.embed_tokens",
            dtype=kinds.stored,
            device=kinds.device,
        )
        self._layers = [Layer(config, i, kinds, ranks) for i in range(config.num_layers)]
        self._norm = RmsNorm(width, eps=config.eps, name="model.norm", device=kinds.device)
        self._tied = config.tied
        self._head = kinds.head(width, {"lm_head": vocab})
        if config.tied:
            self._head.weight = self._embedding.weight

    def run(
        self, input_ids: Tensor, step: PagedStep, halfway: Callable[[], None] | None = None
    ) -> Tensor:
        """Return the stream behind the last layer, [T, d] float32; `step` writes the pools.

        halfway  called when half of the layers are launched
        """
        h = self._embedding(input_ids, Undealt(self._ranks)).to(torch.float32)
        half = (len(self._layers) + 1) // 2
        for layer in self._layers[:half]:
            h = layer(h, step)
        if halfway is not None:
            halfway()
        for layer in self._layers[half:]:
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
