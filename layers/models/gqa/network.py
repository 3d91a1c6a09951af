"""The parts of the network: attention of heads that share keys, and experts.

What matrices multiply is float32 whatever their dtype; experts alone round it. Names of weights are
the published ones.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from jit_kernels.rope_halves import rope_halves
from jit_kernels.route_softmax import route_softmax
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
from layers.models.plain_decoder import Decoder, DecoderLayer
from layers.parallel.ranks import Ranks
from layers.parallel.shares import Size

__all__ = ["decoder"]


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


def decoder(config: GqaConfig, kinds: PlainKinds, ranks: Ranks) -> Decoder[PagedStep]:
    """Return the network, with all weights allocated that this rank holds."""
    width, eps = config.hidden_size, config.eps

    def layer(number: int) -> DecoderLayer[PagedStep]:
        attention = Attention(config, number, kinds, ranks)
        feed_forward = _feed_forward(config, number, kinds, ranks)
        return DecoderLayer(attention, feed_forward, width, eps=eps, device=kinds.device)

    layers = [layer(number) for number in range(config.num_layers)]
    return Decoder(
        layers, width, config.vocab_size, eps=eps, tied=config.tied, kinds=kinds, ranks=ranks
    )


def _feed_forward(config: GqaConfig, layer: int, kinds: PlainKinds, ranks: Ranks) -> FeedForward:
    if config.experts is not None and layer in config.experts.layers:
        return Mixture(config, config.experts, kinds, ranks)
    return Gated(config.hidden_size, config.inner, kinds, ranks, bias=config.mlp_bias)
