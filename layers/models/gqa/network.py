"""The parts of the network: attention of heads that share keys, and experts.

What is multiplied, and in which numbers, is the business of kinds; where tokens read and write is
that of a step (`layers.models.gqa.step`). Names of weights are the published ones.
"""

import math

from torch import Tensor

from jit_kernels.gqa_heads import HeadWeights
from jit_kernels.route_softmax import route_softmax
from layers.blocks.gated import FeedForward, Gated
from layers.blocks.norm import RmsNorm
from layers.experts.contract import ExpertSizes
from layers.kinds import DecoderKinds
from layers.linear.biased import Bias
from layers.linear.contract import Named
from layers.linear.summed import SummedLinear, over_ranks
from layers.models.gqa.config import ExpertFields, GqaConfig
from layers.models.gqa.step import HeadStep
from layers.models.plain_decoder import Decoder, DecoderLayer
from layers.parallel.ranks import Ranks
from layers.parallel.shares import Size

__all__ = ["decoder"]


class Attention:
    """Grouped-query attention over all earlier positions."""

    def __init__(self, config: GqaConfig, layer: int, kinds: DecoderKinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        self._layer, width, shares = layer, config.head_dim, ranks.shares
        heads, groups = shares.heads(config.heads), shares.key_heads(config.key_heads)
        parts: dict[str, Size] = {"q_proj": heads.times(width)}
        parts |= {name: groups.times(width) for name in ("k_proj", "v_proj")}
        self._qkv = kinds.projection(config.hidden_size, parts)
        self._bias = Bias(parts, kinds.device) if config.qkv_bias else None
        self._norms = [
            RmsNorm(width, eps=config.eps, name=name, device=kinds.device)
            for name in ("q_norm", "k_norm")
            if config.head_norms
        ]
        bias = None if self._bias is None else self._bias.values
        norms = (self._norms[0].weight, self._norms[1].weight) if self._norms else None
        self._of_heads = HeadWeights(bias, norms, config.eps)
        self._out = SummedLinear(
            kinds,
            heads.times(width),
            "o_proj",
            config.hidden_size,
            bias=config.output_bias,
            ranks=ranks,
        )

    def __call__(self, x: Tensor, step: HeadStep) -> Tensor:
        """Write keys and values, and return the block's result; see `plain_decoder.Attention`."""
        q = step.store(self._layer, self._qkv(self._qkv.rows(x)), self._of_heads)
        return self._out.of_rows(step.attend(self._layer, q).flatten(1))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for part in (self._qkv, self._bias, *self._norms, self._out):
            if part is not None:
                yield from part.named_weights(prefix)


class Mixture:
    """Routed experts; no expert is shared by all tokens."""

    def __init__(
        self, config: GqaConfig, fields: ExpertFields, kinds: DecoderKinds, ranks: Ranks
    ) -> None:
        """Allocate the weights."""
        width, self._fields, self._ranks = config.hidden_size, fields, ranks
        self._gate = kinds.exact(width, {"gate": fields.count})
        self._dtype, self._sent = kinds.stored, kinds.dtype
        sizes = ExpertSizes(
            ranks.shares.experts(fields.count),
            width,
            ranks.shares.inner(fields.inner, blocks=False),
            chosen=fields.chosen,
            limit=math.inf,
        )
        names = ("gate_proj", "up_proj", "down_proj")
        self._routed = kinds.routed(sizes, names)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's result; see `FeedForward`."""
        x = x.to(self._dtype)
        experts, weights = route_softmax(
            self._gate(self._gate.rows(x)),
            top_k=self._fields.chosen,
            normalised=self._fields.normalised,
        )
        routed = self._routed.alone(x, experts, weights)
        return over_ranks(routed, self._ranks, self._sent)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._gate.named_weights(prefix)
        yield from self._routed.named_weights(prefix)


def decoder(config: GqaConfig, kinds: DecoderKinds, ranks: Ranks) -> Decoder[HeadStep]:
    """Return the network, with all weights allocated that this rank holds."""
    width, eps = config.hidden_size, config.eps

    def layer(number: int) -> DecoderLayer[HeadStep]:
        attention = Attention(config, number, kinds, ranks)
        feed_forward = _feed_forward(config, number, kinds, ranks)
        return DecoderLayer(attention, feed_forward, width, eps=eps, kinds=kinds)

    layers = [layer(number) for number in range(config.num_layers)]
    return Decoder(
        layers, width, config.vocab_size, eps=eps, tied=config.tied, kinds=kinds, ranks=ranks
    )


def _feed_forward(config: GqaConfig, layer: int, kinds: DecoderKinds, ranks: Ranks) -> FeedForward:
    if config.experts is not None and layer in config.experts.layers:
        return Mixture(config, config.experts, kinds, ranks)
    return Gated(config.hidden_size, config.inner, kinds, ranks, bias=config.mlp_bias)
