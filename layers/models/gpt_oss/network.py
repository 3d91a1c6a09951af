"""The parts of the network: attention of grouped heads with sinks, over everything or a window.

What is multiplied, and in which numbers, is the business of kinds; where tokens read and write is
that of a step. On the CPU what matrices multiply is float32 whatever their dtype; experts alone
round it. Names of weights are the published ones.
"""

import torch
from torch import Tensor

from layers.kinds import DecoderKinds
from layers.linear.biased import Bias
from layers.linear.contract import Named
from layers.linear.summed import SummedLinear
from layers.models.gpt_oss.config import GptOssConfig
from layers.models.gpt_oss.experts import Mixture
from layers.models.gpt_oss.step import SinkStep
from layers.models.plain_decoder import Decoder, DecoderLayer
from layers.parallel.ranks import Ranks
from layers.parallel.shares import Size
from layers.weights.part import part_of

__all__ = ["decoder"]


class Attention:
    """Grouped-query attention with sinks.

    sinks  [heads] of the kinds' dtype, one more logit of each head, without a value
    """

    def __init__(self, config: GptOssConfig, layer: int, kinds: DecoderKinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        self._layer, width = layer, config.head_dim
        self._shares = ranks.shares.heads(config.heads)
        groups = ranks.shares.key_heads(config.key_heads)
        parts: dict[str, Size] = {"q_proj": self._shares.times(width)}
        parts |= {name: groups.times(width) for name in ("k_proj", "v_proj")}
        self._qkv = kinds.projection(config.hidden_size, parts)
        self._bias = Bias(parts, kinds.device)
        self._out = SummedLinear(
            kinds, self._shares.times(width), "o_proj", config.hidden_size, bias=True, ranks=ranks
        )
        self.sinks = torch.zeros(self._shares.count, dtype=kinds.dtype, device=kinds.device)

    def __call__(self, x: Tensor, step: SinkStep) -> Tensor:
        """Write keys and values, and return the block's result; see `plain_decoder.Attention`."""
        made = self._qkv(self._qkv.rows(x))
        read = step.read(self._layer, made, self._bias.values, self.sinks)
        return self._out.of_rows(read.flatten(1))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for part in (self._qkv, self._bias, self._out):
            yield from part.named_weights(prefix)
        yield f"{prefix}sinks", part_of(self.sinks, self._shares)


def decoder(config: GptOssConfig, kinds: DecoderKinds, ranks: Ranks) -> Decoder[SinkStep]:
    """Return the network, with all weights allocated that this rank holds."""
    width, eps = config.hidden_size, config.eps

    def layer(number: int) -> DecoderLayer[SinkStep]:
        attention = Attention(config, number, kinds, ranks)
        mixture = Mixture(width, config.experts, kinds, ranks)
        return DecoderLayer(attention, mixture, width, eps=eps, kinds=kinds)

    layers = [layer(number) for number in range(config.num_layers)]
    return Decoder(
        layers, width, config.vocab_size, eps=eps, tied=config.tied, kinds=kinds, ranks=ranks
    )
