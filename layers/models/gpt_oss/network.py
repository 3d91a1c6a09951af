"""The parts of the network: attention of grouped heads with sinks, over everything or a window.

What matrices multiply is float32 whatever their dtype; experts alone round it. Names of weights are
the published ones.
"""

import torch
from torch import Tensor

from jit_kernels.rope_halves import rope_halves
from layers.kinds import PlainKinds
from layers.linear.biased import BiasedLinear
from layers.linear.contract import Named
from layers.linear.summed import SummedLinear
from layers.models.gpt_oss.config import GptOssConfig
from layers.models.gpt_oss.experts import Mixture
from layers.models.gpt_oss.step import WindowStep
from layers.models.plain_decoder import Decoder, DecoderLayer
from layers.parallel.ranks import Ranks
from layers.parallel.shares import Size
from layers.weights.part import part_of

__all__ = ["decoder"]


class Attention:
    """Grouped-query attention with sinks.

    sinks  [heads] float32, one more logit of each head, without a value
    """

    def __init__(self, config: GptOssConfig, layer: int, kinds: PlainKinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        self._layer, width = layer, config.head_dim
        self._shares = ranks.shares.heads(config.heads)
        groups = ranks.shares.key_heads(config.key_heads)
        self._heads, self._groups, self._width = self._shares.count, groups.count, width
        parts: dict[str, Size] = {"q_proj": self._shares.times(width)}
        parts |= {name: groups.times(width) for name in ("k_proj", "v_proj")}
        product = kinds.projection(config.hidden_size, parts)
        self._qkv = BiasedLinear(product, parts, kinds.device)
        self._out = SummedLinear(
            kinds, self._shares.times(width), "o_proj", config.hidden_size, bias=True, ranks=ranks
        )
        self.sinks = torch.zeros(self._heads, dtype=torch.float32, device=kinds.device)

    def __call__(self, x: Tensor, step: WindowStep) -> Tensor:
        """Write keys and values, and return the block's result, [T, d] float32; `x` is normed."""
        made = self._qkv(self._qkv.rows(x)).unflatten(1, (-1, self._width))
        turned = self._heads + self._groups
        rope_halves(made[:, :turned], step.rotation(self._layer))
        q, keys, values = made.split([self._heads, self._groups, self._groups], 1)
        scale = self._width**-0.5
        read = step.attend(self._layer, q, keys, values, scale=scale, sinks=self.sinks)
        return self._out.of_rows(read.flatten(1))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._qkv.named_weights(prefix)
        yield from self._out.named_weights(prefix)
        yield f"{prefix}sinks", part_of(self.sinks, self._shares)


def decoder(config: GptOssConfig, kinds: PlainKinds, ranks: Ranks) -> Decoder[WindowStep]:
    """Return the network, with all weights allocated that this rank holds."""
    width, eps = config.hidden_size, config.eps

    def layer(number: int) -> DecoderLayer[WindowStep]:
        attention = Attention(config, number, kinds, ranks)
        mixture = Mixture(width, config.experts, kinds, ranks)
        return DecoderLayer(attention, mixture, width, eps=eps, kinds=kinds)

    layers = [layer(number) for number in range(config.num_layers)]
    return Decoder(
        layers, width, config.vocab_size, eps=eps, tied=config.tied, kinds=kinds, ranks=ranks
    )
