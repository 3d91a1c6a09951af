"""The parts of the network: attention over latent records, and experts with a shared block.

Attention is absorbed: a head's key and value of a position are both products with its record's
latent c, so that the product of keys moves to the query and that of values behind the softmax:

    q . k = (q_plain K) . c + q_turned . record_turned        k = [K c, record_turned]
    sum of p v = V (sum of p c)                               v = V c

What matrices multiply is float32 whatever their dtype; routed experts alone round it. Names of
weights are the published ones.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from jit_kernels.latent_queries import latent_queries
from jit_kernels.route_groups import route_groups
from jit_kernels.tile_linear import tile_linear_grouped
from layers.blocks.gated import FeedForward, Gated
from layers.blocks.norm import RmsNorm
from layers.experts.contract import ExpertSizes
from layers.experts.plain import PlainExperts
from layers.kinds import PlainKinds
from layers.linear.biased import BiasedLinear
from layers.linear.contract import Linear, Named
from layers.linear.summed import SummedLinear
from layers.models.mla.config import ExpertFields, HeadFields, MlaConfig
from layers.models.mla.step import LatentStep
from layers.models.plain_decoder import Decoder, DecoderLayer
from layers.parallel.ranks import Ranks
from layers.parallel.shares import Share, Size
from layers.weights.part import part_of

__all__ = ["Attention", "DenseAttention", "decoder"]

# Of the norms of latents; it is in no configuration.
_LATENT_EPS = 1e-6


class Queries:
    """What makes queries of the stream: one product, or two with a norm between them."""

    def __init__(self, config: MlaConfig, heads: Share, kinds: PlainKinds) -> None:
        """Allocate the weights."""
        width, fields = config.hidden_size, config.heads
        self._width = fields.plain + fields.turned
        rows, rank = heads.times(self._width), fields.q_rank
        self._down = self._norm = None
        if rank is None:
            self._up = kinds.projection(width, {"q_proj": rows})
            return
        self._down = _from_stream(config, {"q_a_proj": rank}, kinds)
        self._norm = RmsNorm(rank, eps=_LATENT_EPS, name="q_a_layernorm", device=kinds.device)
        self._up = kinds.projection(rank, {"q_b_proj": rows})

    def latent(self, x: Tensor) -> Tensor:
        """Return what queries are products of, normed: `x` [T, d] float32, or its latent [T, q]."""
        if self._down is None or self._norm is None:
            return x
        return self._norm(self._down(self._down.rows(x)))

    def __call__(self, latent: Tensor) -> Tensor:
        """Return the queries of latents, [T, H, plain + turned] float32."""
        return self._up(self._up.rows(latent)).unflatten(1, (-1, self._width))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for part in (self._down, self._norm, self._up):
            if part is not None:
                yield from part.named_weights(prefix)


class LatentHeads:
    """What makes keys and values of latents, moved to the other side of attention.

    weight  [H, plain + value, latent]   of each head the rows of its keys, then those of its values
    """

    def __init__(self, fields: HeadFields, heads: Share, kinds: PlainKinds) -> None:
        """Allocate the weight."""
        rows = fields.plain + fields.value
        shape = (heads.count, rows, fields.latent)
        self.weight = torch.zeros(shape, dtype=kinds.stored, device=kinds.device)
        self._plain, self._rows = fields.plain, heads.times(rows)

    def queries(self, q: Tensor) -> Tensor:
        """Return what queries [T, H, plain] multiply latents with, [T, H, latent] float32."""
        return latent_queries(q, self.weight[:, : self._plain])

    def values(self, read: Tensor) -> Tensor:
        """Return the values of sums of latents [T, H, latent], [T, H value] float32."""
        return tile_linear_grouped(read, self.weight[:, self._plain :])

    def named_weights(self, prefix: str) -> Named:
        """Yield the weight under its name in files."""
        weight = self.weight.flatten(0, 1)
        yield f"{prefix}kv_b_proj.weight", part_of(weight, self._rows, weight.shape[1])


class _Step(Protocol):
    """What attention over latents asks of a step."""

    def turn(self, x: Tensor) -> Tensor: ...
    def store(self, layer: int, records: Tensor) -> None: ...


StepT = TypeVar("StepT", bound=_Step)


class Attention(ABC, Generic[StepT]):
    """Attention of all heads over one record a position."""

    def __init__(self, config: MlaConfig, layer: int, kinds: PlainKinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        fields, width = config.heads, config.hidden_size
        heads = ranks.shares.heads(fields.count)
        self._layer, self._fields, self._scale = layer, fields, config.logit_scale
        self._queries = Queries(config, heads, kinds)
        record = fields.latent + fields.turned
        self._down = _from_stream(config, {"kv_a_proj_with_mqa": record}, kinds)
        self._norm = RmsNorm(
            fields.latent, eps=_LATENT_EPS, name="kv_a_layernorm", device=kinds.device
        )
        self._heads = LatentHeads(fields, heads, kinds)
        self._out = SummedLinear(
            kinds, heads.times(fields.value), "o_proj", width, bias=config.biased, ranks=ranks
        )

    def __call__(self, x: Tensor, step: StepT) -> Tensor:
        """Write records, and return the block's result, [T, d] float32."""
        fields = self._fields
        made = self._down(self._down.rows(x))
        latent, turned = made.split([fields.latent, fields.turned], 1)
        records = torch.cat((self._norm(latent), turned), 1)
        step.store(self._layer, step.turn(records.unsqueeze(1)).squeeze(1))
        latent = self._queries.latent(x)
        plain, turned = step.turn(self._queries(latent)).split([fields.plain, fields.turned], 2)
        q = torch.cat((self._heads.queries(plain), turned), 2)
        return self._out.of_rows(self._heads.values(self.read(q, x, latent, step)))

    @abstractmethod
    def read(self, q: Tensor, x: Tensor, latent: Tensor, step: StepT) -> Tensor:
        """Return what queries read of the records that they attend, [T, H, latent] float32.

        q       [T, H, latent + turned] float32
        x       [T, d] float32   the normed stream
        latent  [T, q] float32   what queries were made of
        """

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for part in (self._queries, self._down, self._norm, self._heads, self._out):
            yield from part.named_weights(prefix)


class DenseAttention(Attention[LatentStep]):
    """Attention over all positions up to a token's own."""

    def read(self, q: Tensor, x: Tensor, latent: Tensor, step: LatentStep) -> Tensor:
        """Read all records; see `Attention`."""
        del x, latent
        return step.attend(self._layer, q, scale=self._scale)


class Mixture:
    """Routed experts, and one block that all tokens pass; a `FeedForward`."""

    def __init__(
        self, config: MlaConfig, fields: ExpertFields, kinds: PlainKinds, ranks: Ranks
    ) -> None:
        """Allocate the weights."""
        width, self._fields, self._ranks = config.hidden_size, fields, ranks
        self._gate = kinds.exact(width, {"gate": fields.count})
        self._bias = torch.zeros(fields.count, device=kinds.device) if fields.biased else None
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
        self._shared = Gated(width, fields.shared, kinds, ranks) if fields.shared else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's result; see `FeedForward`."""
        fields = self._fields
        rows = self._gate.rows(x)
        experts, weights = route_groups(
            self._gate(rows),
            self._bias,
            top_k=fields.chosen,
            groups=fields.groups,
            kept=fields.kept,
            normalised=fields.normalised,
            scale=fields.scale,
        )

        def shared() -> Tensor:
            zero = torch.zeros((), device=x.device)
            return zero if self._shared is None else self._shared.part_of(x)

        routed = self._routed(x.to(self._dtype), rows, experts, weights, shared)
        return self._ranks.all_reduce(routed)

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
    attention: Callable[[MlaConfig, int, PlainKinds, Ranks], Attention[StepT]],
    kinds: PlainKinds,
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


def _from_stream(config: MlaConfig, parts: dict[str, Size], kinds: PlainKinds) -> Linear:
    """Return what makes latents of the stream, with a bias where the configuration has them."""
    product = kinds.projection(config.hidden_size, parts)
    return BiasedLinear(product, parts, kinds.device) if config.biased else product


def _feed_forward(config: MlaConfig, layer: int, kinds: PlainKinds, ranks: Ranks) -> FeedForward:
    if config.experts is not None and layer in config.experts.layers:
        return Mixture(config, config.experts, kinds, ranks)
    return Gated(config.hidden_size, config.inner, kinds, ranks)
