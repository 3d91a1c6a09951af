"""Attention over the records that an indexer chooses: DeepSeek V3.2.

A token's indexer has a key, which is cached beside the record, and queries with a weight each:

    wanted(t, s) = sum over h of weight_t(h) relu(q_t(h) . key_s)        s <= t

It attends the positions that it wants most. Ranks hold the whole indexer, so that all choose alike.
Source: DeepSeek-V3.2-Exp, report and inference code.
"""

from torch import Tensor

from layers.blocks.norm import LayerNorm
from layers.kinds import DecoderKinds
from layers.linear.contract import Named
from layers.models.mla.config import HeadFields, IndexFields, MlaConfig
from layers.models.mla.network import Attention
from layers.models.mla.sparse_step import ChoosingStep, Wanted
from layers.parallel.ranks import Ranks

__all__ = ["SparseAttention"]

# Of the norm of keys; it is in no configuration.
_KEY_EPS = 1e-6


class Indexer:
    """What makes indexer keys and queries of one layer."""

    def __init__(
        self, width: int, heads: HeadFields, fields: IndexFields, kinds: DecoderKinds
    ) -> None:
        """Allocate the weights; the stream has `width` channels."""
        assert heads.q_rank is not None, "the configuration was checked"
        self._fields = fields
        self._up = kinds.projection(heads.q_rank, {"wq_b": fields.heads * fields.width})
        self._key = kinds.projection(width, {"wk": fields.width})
        self._norm = LayerNorm(fields.width, eps=_KEY_EPS, name="k_norm", device=kinds.device)
        self._weigh = kinds.exact(width, {"weights_proj": fields.heads})

    def keys(self, x: Tensor) -> Tensor:
        """Return the keys of `x` [T, d], [T, C] float32, not yet turned."""
        return self._norm(self._key(self._key.rows(x)))

    def wanted(self, x: Tensor, latent: Tensor) -> Wanted:
        """Return the queries, not yet turned, of `x` and of the latents of attention's queries."""
        fields = self._fields
        q = self._up(self._up.rows(latent)).unflatten(1, (fields.heads, fields.width))
        weights = self._weigh(self._weigh.rows(x))
        return Wanted(q, weights * (fields.heads**-0.5 * fields.width**-0.5))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for part in (self._up, self._key, self._norm, self._weigh):
            yield from part.named_weights(prefix)


class SparseAttention(Attention[ChoosingStep]):
    """Attention over the positions that the layer's indexer chooses."""

    def __init__(self, config: MlaConfig, layer: int, kinds: DecoderKinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        super().__init__(config, layer, kinds, ranks)
        assert config.index is not None, "the configuration was checked"
        self._indexer = Indexer(config.hidden_size, config.heads, config.index, kinds)

    def read(self, q: Tensor, x: Tensor, latent: Tensor, step: ChoosingStep) -> Tensor:
        """Write indexer keys, and read the records that are chosen; see `Attention`."""
        step.store_keys(self._layer, self._indexer.keys(x))
        wanted = self._indexer.wanted(x, latent)
        return step.attend(self._layer, q, wanted, scale=self._scale)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from super().named_weights(prefix)
        yield from self._indexer.named_weights(f"{prefix}indexer.")
