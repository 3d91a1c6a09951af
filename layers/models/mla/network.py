"""The parts of the network: attention over latent records, and experts with a shared block.

Attention is absorbed: a head's key and value of a position are both products with its record's
latent c, so that the product of keys moves to the query and that of values behind the softmax:

    q . k = (q_plain K) . c + q_turned . record_turned        k = [K c, record_turned]
    sum of p v = V (sum of p c)                               v = V c

What is multiplied, and in which numbers, is the business of kinds; where tokens read and write is
that of a step (`layers.models.mla.step`). Names of weights are the published ones.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from jit_kernels.latent_heads import LatentWeights
from jit_kernels.route_groups import route_groups
from layers.blocks.gated import FeedForward, Gated
from layers.blocks.norm import RmsNorm
from layers.experts.contract import ExpertSizes
from layers.kinds import DecoderKinds
from layers.linear.biased import BiasedLinear
from layers.linear.contract import Linear, Named
from layers.linear.summed import SummedLinear, over_ranks
from layers.models.mla.config import ExpertFields, HeadFields, MlaConfig
from layers.models.mla.step import DenseStep, HeadStep
from layers.models.plain_decoder import Decoder, DecoderLayer
from layers.parallel.ranks import Ranks
from layers.parallel.shares import Share, Size
from layers.weights.part import part_of

__all__ = ["Attention", "DenseAttention", "decoder"]

# Of the norms of latents; it is in no configuration.
_LATENT_EPS = 1e-6


class Queries:
    """What makes queries of their latent."""

    def __init__(self, rank: int, rows: Size, kinds: DecoderKinds) -> None:
        """Allocate the weights."""
        self._dtype = kinds.dtype
        self._norm = RmsNorm(rank, eps=_LATENT_EPS, name="q_a_layernorm", device=kinds.device)
        self._up = kinds.projection(rank, {"q_b_proj": rows})

    def latent(self, made: Tensor) -> Tensor:
        """Return the normed latents of `made` [T, q] float32."""
        return self._norm.of_sum(made.contiguous(), None, out_dtype=self._dtype)

    def __call__(self, latent: Tensor) -> Tensor:
        """Return the queries of normed latents [T, q], [T, H (plain + turned)] float32."""
        return self._up(self._up.rows(latent))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._norm.named_weights(prefix)
        yield from self._up.named_weights(prefix)


class LatentHeads:
    """What makes keys and values of latents, moved to the other side of attention.

    weight  [H, plain + value, latent]   of each head the rows of its keys, then those of its values
    keys    [H, plain, latent]   of the weight
    values  [H, value, latent]
    """

    def __init__(self, fields: HeadFields, heads: Share, kinds: DecoderKinds) -> None:
        """Allocate the weight."""
        rows = fields.plain + fields.value
        shape = (heads.count, rows, fields.latent)
        self.weight = torch.zeros(shape, dtype=kinds.stored, device=kinds.device)
        self.keys, self.values = self.weight.split([fields.plain, fields.value], 1)
        self._rows = heads.times(rows)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weight under its name in files."""
        weight = self.weight.flatten(0, 1)
        yield f"{prefix}kv_b_proj.weight", part_of(weight, self._rows, weight.shape[1])


StepT = TypeVar("StepT", bound=HeadStep)


class Attention(ABC, Generic[StepT]):
    """Attention of all heads over one record a position."""

    def __init__(self, config: MlaConfig, layer: int, kinds: DecoderKinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        fields, width = config.heads, config.hidden_size
        heads = ranks.shares.heads(fields.count)
        self._layer, self._scale = layer, config.logit_scale
        self._width, self._record = fields.plain + fields.turned, fields.latent + fields.turned
        rows, rank = heads.times(self._width), fields.q_rank
        self._queries = None if rank is None else Queries(rank, rows, kinds)
        first: dict[str, Size] = {"q_proj": rows} if rank is None else {"q_a_proj": rank}
        self._down = _from_stream(config, {**first, "kv_a_proj_with_mqa": self._record}, kinds)
        self._norm = RmsNorm(
            fields.latent, eps=_LATENT_EPS, name="kv_a_layernorm", device=kinds.device
        )
        self._heads = LatentHeads(fields, heads, kinds)
        self._weights = LatentWeights(self._heads.keys, self._norm.weight, _LATENT_EPS)
        self._out = SummedLinear(
            kinds, heads.times(fields.value), "o_proj", width, bias=config.biased, ranks=ranks
        )

    def __call__(self, x: Tensor, step: StepT) -> Tensor:
        """Write records, and return the block's result; see `plain_decoder.Attention`."""
        made = self._down(self._down.rows(x))
        q, record = made.split([made.shape[1] - self._record, self._record], 1)
        latent = x
        if self._queries is not None:
            latent = self._queries.latent(q)
            q = self._queries(latent)
        q = step.heads(self._layer, q.unflatten(1, (-1, self._width)), record, self._weights)
        return self._out.of_rows(step.values(self.read(q, x, latent, step), self._heads.values))

    @abstractmethod
    def read(self, q: Tensor, x: Tensor, latent: Tensor, step: StepT) -> Tensor:
        """Return what queries read of the records that they attend, [T, H, latent].

        q       [T, H, latent + turned]   those that the step made
        x       [T, d]   the normed stream
        latent  [T, q]   what queries were made of
        """

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for part in (self._queries, self._down, self._norm, self._heads, self._out):
            if part is not None:
                yield from part.named_weights(prefix)


class DenseAttention(Attention[DenseStep]):
    """Attention over all positions up to a token's own."""

    def read(self, q: Tensor, x: Tensor, latent: Tensor, step: DenseStep) -> Tensor:
        """Read all records; see `Attention`."""
        del x, latent
        return step.attend(self._layer, q, scale=self._scale)


class Mixture:
    """Routed experts, and one block that all tokens pass; a `FeedForward`."""

    def __init__(
        self, config: MlaConfig, fields: ExpertFields, kinds: DecoderKinds, ranks: Ranks
    ) -> None:
        """Allocate the weights."""
        width, self._fields, self._ranks = config.hidden_size, fields, ranks
        self._gate = kinds.exact(width, {"gate": fields.count})
        self._bias = torch.zeros(fields.count, device=kinds.device) if fields.biased else None
        self._dtype, self._sent, self._side = kinds.stored, kinds.dtype, kinds.side
        sizes = ExpertSizes(
            ranks.shares.experts(fields.count),
            width,
            ranks.shares.inner(fields.inner, blocks=False),
            chosen=fields.chosen,
            limit=math.inf,
        )
        names = ("gate_proj", "up_proj", "down_proj")
        self._routed = kinds.routed(sizes, names)
        self._shared = Gated(width, fields.shared, kinds, ranks) if fields.shared else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's result; see `FeedForward`."""
        fields, shared, rows = self._fields, self._beside(x), self._gate.rows(x)
        experts, weights = route_groups(
            self._gate(rows),
            self._bias,
            top_k=fields.chosen,
            groups=fields.groups,
            kept=fields.kept,
            normalised=fields.normalised,
            scale=fields.scale,
        )
        x = x.to(self._dtype)
        if shared is None:
            routed = self._routed.alone(x, experts, weights)
        else:
            routed = self._routed(x, rows, experts, weights, shared)
        return over_ranks(routed, self._ranks, self._sent)

    def _beside(self, x: Tensor) -> Callable[[], Tensor] | None:
        """Compute what all tokens pass beside what follows; return what waits for it."""
        if self._shared is None:
            return None
        with self._side.beside(x.shape[0]):
            made = self._shared.part_of(x)

        def joined() -> Tensor:
            self._side.join()
            return made

        return joined

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._gate.named_weights(prefix)
        if self._bias is not None:
            yield f"{prefix}gate.e_score_correction_bias", self._bias
        yield from self._routed.named_weights(prefix)
        if self._shared is not None:
            yield from self._shared.named_weights(f"{prefix}shared_experts.")


def decoder(
    config: MlaConfig,
    attention: Callable[[MlaConfig, int, DecoderKinds, Ranks], Attention[StepT]],
    kinds: DecoderKinds,
    ranks: Ranks,
) -> Decoder[StepT]:
    """Return the network, with all weights allocated that this rank holds.

    attention  makes that of a layer
    """
    width, eps = config.hidden_size, config.eps

    def layer(number: int) -> DecoderLayer[StepT]:
        attend = attention(config, number, kinds, ranks)
        feed_forward = _feed_forward(config, number, kinds, ranks)
        return DecoderLayer(attend, feed_forward, width, eps=eps, kinds=kinds)

    layers = [layer(number) for number in range(config.num_layers)]
    return Decoder(
        layers, width, config.vocab_size, eps=eps, tied=config.tied, kinds=kinds, ranks=ranks
    )


def _from_stream(config: MlaConfig, parts: dict[str, Size], kinds: DecoderKinds) -> Linear:
    """Return what makes latents of the stream, with biases where the configuration has them.

    Queries made of the stream itself have none.
    """
    product = kinds.projection(config.hidden_size, parts)
    if not config.biased:
        return product
    return BiasedLinear(product, parts, kinds.device, without=("q_proj",))


def _feed_forward(config: MlaConfig, layer: int, kinds: DecoderKinds, ranks: Ranks) -> FeedForward:
    if config.experts is not None and layer in config.experts.layers:
        return Mixture(config, config.experts, kinds, ranks)
    return Gated(config.hidden_size, config.inner, kinds, ranks)
