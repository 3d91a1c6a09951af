"""These families as a `Model`: configuration, pools, and the network on the CPU."""

from collections.abc import Collection
from typing import Any

import torch

from jit_kernels.checks import ShapeError
from jit_kernels.latent_records import latent_record_bytes
from layers.blocks.rope import HalfRope, PairRope, frequencies
from layers.kinds import PlainKinds
from layers.models.contract import Settings
from layers.models.json_fields import ConfigFault
from layers.models.mla.config import MlaConfig, parse_config
from layers.models.mla.network import DenseAttention, decoder
from layers.models.mla.pools import LatentPools
from layers.models.mla.sparse_network import SparseAttention
from layers.models.mla.sparse_pools import PAGE_KEYS, SparsePage, SparsePools
from layers.models.mla.sparse_step import Ropes, SparseStep
from layers.models.mla.step import LatentStep
from layers.models.plain_model import (
    RECORD_DTYPES,
    CpuModel,
    Numbers,
    PlainNetwork,
)
from layers.parallel.ranks import OneRank, Ranks
from layers.steps.forward_batch import ForwardBatch
from mem_cache.spec import Paged, PoolSizes

__all__ = ["MlaModel", "PlainMla", "PlainSparseMla", "read"]


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "MlaModel":
    """Return the model of parsed files; see `layers.models.registry`."""
    return MlaModel(parse_config(raw, generation, override))


class MlaModel(CpuModel[MlaConfig]):
    """A checkpoint's configuration; a `Model`."""

    @property
    def formats(self) -> Collection[str]:
        """In which formats the family caches; packed records are for those that choose them."""
        return RECORD_DTYPES if self.config.index is None else (*RECORD_DTYPES, "fp8")

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "PlainMla | PlainSparseMla":
        """Return the network; see `Model`."""
        ranks = ranks or OneRank()
        numbers = self.numbers(device, settings, ranks)
        kind = PlainMla if self.config.index is None else PlainSparseMla
        return kind(self.config, numbers, ranks)


class PlainMla(PlainNetwork[LatentPools, LatentStep]):
    """The network in plain numbers; every token attends in the same form."""

    def __init__(self, config: MlaConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights."""
        fields = config.heads
        self._turned = fields.turned
        self._shape = (config.num_layers, numbers.page_tokens, fields.latent + fields.turned)
        self._rope = _rope(config, numbers.device, interleaved=config.interleaved)
        layers, positions, channels = self._shape
        page = layers * positions * channels * numbers.record_dtype.itemsize
        wired = decoder(config, DenseAttention, _kinds(numbers), ranks)
        super().__init__(wired, numbers, Paged("latent", page))

    def pools(self, sizes: PoolSizes) -> LatentPools:
        """Return pools on the device; see `Network`."""
        numbers = self._numbers
        return LatentPools(self._shape, numbers.record_dtype, sizes, numbers.device)

    def step(self, batch: ForwardBatch, pools: LatentPools) -> LatentStep:
        """Return what the layers of a step share."""
        return LatentStep(batch, pools, self._rope, turned=self._turned)


class PlainSparseMla(PlainNetwork[SparsePools, SparseStep]):
    """The network with an indexer in each layer, in plain numbers."""

    def __init__(self, config: MlaConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights. Raises ConfigFault where records cannot be packed as asked."""
        fields, index = config.heads, config.index
        assert index is not None, "the configuration was checked"
        channels = fields.latent + fields.turned
        _check_packed(config, index.width, numbers.records)
        # Indexer keys lie in pages of their own.
        tokens = max(numbers.page_tokens, PAGE_KEYS)
        self._page = SparsePage(tokens, channels, fields.turned, index.width, numbers.records)
        self._layers, self._chosen = config.num_layers, index.chosen
        self._ropes = Ropes(
            _rope(config, numbers.device, interleaved=config.interleaved),
            _rope(config, numbers.device, interleaved=index.interleaved),
        )
        wired = decoder(config, SparseAttention, _kinds(numbers), ranks)
        paged = Paged("latent", self._layers * self._page.bytes)
        super().__init__(wired, numbers, paged, page_tokens=tokens)

    def pools(self, sizes: PoolSizes) -> SparsePools:
        """Return pools on the device; see `Network`."""
        return SparsePools(self._layers, self._page, sizes, self._numbers.device)

    def step(self, batch: ForwardBatch, pools: SparsePools) -> SparseStep:
        """Return what the layers of a step share."""
        return SparseStep(batch, pools, self._ropes, chosen=self._chosen)


def _kinds(numbers: Numbers) -> PlainKinds:
    return PlainKinds(numbers.device, torch.float32, stored=numbers.dtype)


def _rope(config: MlaConfig, device: torch.device, *, interleaved: bool) -> PairRope:
    rope = config.rope
    return (PairRope if interleaved else HalfRope)(
        frequencies(config.heads.turned, rope.theta, rope.scaling),
        attention_factor=rope.attention_factor,
        device=device,
    )


def _check_packed(config: MlaConfig, key_channels: int, record_format: str) -> None:
    """Raise ConfigFault where the widths of records or keys have no packed form."""
    if record_format != "fp8":
        return
    fields = config.heads
    try:
        latent_record_bytes(
            fields.latent + fields.turned, record_format="fp8", rope_channels=fields.turned
        )
    except ShapeError as error:
        raise ConfigFault(f"kv_cache_dtype fp8: kv_lora_rank {fields.latent}: {error}") from None
    if key_channels & (key_channels - 1):
        raise ConfigFault(
            f"kv_cache_dtype fp8 needs an index_head_dim that is a power of two, got {key_channels}"
        )
