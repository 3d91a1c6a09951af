"""These families as a `Model`: configuration, pools, and the network on a device."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jit_kernels.checks import ShapeError
from jit_kernels.latent_records import latent_record_bytes
from layers.blocks.rope import HalfRope, PairRope, frequencies
from layers.kinds import Bf16Kinds, PlainKinds
from layers.models.contract import Settings
from layers.models.cuda_decoder import CudaDecoder
from layers.models.json_fields import ConfigFault
from layers.models.mla.choice import Choice, ChunkChoice, TokenChoice
from layers.models.mla.config import MlaConfig, check_geometry_of_kernels, parse_config
from layers.models.mla.network import DenseAttention, decoder
from layers.models.mla.packed_step import PackedStep
from layers.models.mla.pools import LatentPools
from layers.models.mla.sparse_network import SparseAttention
from layers.models.mla.sparse_pools import PAGE_KEYS, SparsePage, SparsePools
from layers.models.mla.sparse_step import Ropes, SparseStep
from layers.models.mla.step import Bf16Step, LatentStep
from layers.models.plain_model import (
    PAGE_TOKENS,
    RECORD_DTYPES,
    CpuModel,
    Numbers,
    PlainNetwork,
)
from layers.parallel.ranks import OneRank, Ranks
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_places import PagePlaces, of_chunks
from mem_cache.spec import Paged, PoolSizes

__all__ = ["CudaMla", "CudaSparseMla", "MlaModel", "PlainMla", "PlainSparseMla", "read"]


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "MlaModel":
    """Return the model of parsed files; see `layers.models.registry`."""
    return MlaModel(parse_config(raw, generation, override))


class MlaModel(CpuModel[MlaConfig]):
    """A checkpoint's configuration; a `Model`."""

    @property
    def formats(self) -> Collection[str]:
        """In which formats the family caches; packed records are for those that choose them."""
        return RECORD_DTYPES if self.config.index is None else (*RECORD_DTYPES, "fp8")

    @property
    def cuda_format(self) -> str:
        """In which of them it caches on a GPU: kernels that choose read packed records."""
        return "bf16" if self.config.index is None else "fp8"

    @property
    def wheels(self) -> Sequence[str]:
        """What it needs on a CUDA device; see `Model`."""
        chooses = self.config.index is not None
        return (*super().wheels, *(("sgl-flash-mla",) if chooses else ()))

    def check_cuda(self) -> None:
        """Raise ConfigFault, naming the field, for what the kernels do not take."""
        check_geometry_of_kernels(self.config)

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "PlainMla | PlainSparseMla | CudaMla | CudaSparseMla":
        """Return the network; see `Model`."""
        ranks, dense = ranks or OneRank(), self.config.index is None
        numbers = self.numbers(device, settings, ranks)
        if device.type == "cuda":
            return (CudaMla if dense else CudaSparseMla)(self.config, numbers, ranks)
        return (PlainMla if dense else PlainSparseMla)(self.config, numbers, ranks)


@dataclass(frozen=True, slots=True)
class _Pages:
    """Pages of `tokens` records of `channels` numbers."""

    layers: int
    tokens: int
    channels: int
    dtype: torch.dtype

    @classmethod
    def of(cls, config: MlaConfig, numbers: Numbers, tokens: int) -> "_Pages":
        """Return those of a network."""
        channels = config.heads.latent + config.heads.turned
        return cls(config.num_layers, tokens, channels, numbers.record_dtype)

    @property
    def paged(self) -> Paged:
        """Return what a page of all layers weighs."""
        weight = self.layers * self.tokens * self.channels * self.dtype.itemsize
        return Paged("latent", weight)

    def pools(self, sizes: PoolSizes, device: torch.device) -> LatentPools:
        """Return pools on a device."""
        shape = (self.layers, self.tokens, self.channels)
        return LatentPools(shape, self.dtype, sizes, device)


class PlainMla(PlainNetwork[LatentPools, LatentStep]):
    """The network in plain numbers; every token attends in the same form."""

    def __init__(self, config: MlaConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights."""
        self._turned = config.heads.turned
        self._pages = _Pages.of(config, numbers, numbers.page_tokens)
        self._rope = _rope(config, numbers.device, interleaved=config.interleaved)
        wired = decoder(config, DenseAttention, _kinds(numbers), ranks)
        super().__init__(wired, numbers, self._pages.paged)

    def pools(self, sizes: PoolSizes) -> LatentPools:
        """Return pools on the device; see `Network`."""
        return self._pages.pools(sizes, self._numbers.device)

    def step(self, batch: ForwardBatch, pools: LatentPools) -> LatentStep:
        """Return what the layers of a step share."""
        return LatentStep(batch, pools, self._rope, turned=self._turned)


class CudaMla(CudaDecoder[LatentPools, Bf16Step]):
    """The network on a Hopper GPU."""

    def __init__(self, config: MlaConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights."""
        self.config, self._pages = config, _Pages.of(config, numbers, PAGE_TOKENS)
        self._rope = _rope(config, numbers.device, interleaved=config.interleaved)
        kinds = Bf16Kinds(numbers.device, deterministic=numbers.deterministic)
        wired = decoder(config, DenseAttention, kinds, ranks)
        super().__init__(wired, numbers, self._pages.paged)

    def pools(self, sizes: PoolSizes) -> LatentPools:
        """Return pools on the device; see `Network`."""
        return self._pages.pools(sizes, self.device)

    def placed(self, places: PagePlaces, pools: LatentPools) -> Bf16Step:
        """Return the step of tokens in these places."""
        deterministic = self._numbers.deterministic
        return Bf16Step(places, pools, self._rope, deterministic=deterministic)


class _Sparse:
    """What networks with an indexer in each layer have in common, in any numbers."""

    def __init__(self, config: MlaConfig, numbers: Numbers, tokens: int) -> None:
        """Derive it. Raises ConfigFault where records cannot be packed as asked.

        tokens  of a page
        """
        fields, index = config.heads, config.index
        assert index is not None, "the configuration was checked"
        channels = fields.latent + fields.turned
        _check_packed(config, index.width, numbers.records)
        self.page = SparsePage(tokens, channels, fields.turned, index.width, numbers.records)
        self.chosen, self._layers, self._device = index.chosen, config.num_layers, numbers.device
        self.ropes = Ropes(
            _rope(config, numbers.device, interleaved=config.interleaved),
            _rope(config, numbers.device, interleaved=index.interleaved),
        )

    @property
    def paged(self) -> Paged:
        """Return what a page of all layers weighs."""
        return Paged("latent", self._layers * self.page.bytes)

    def pools(self, sizes: PoolSizes) -> SparsePools:
        """Return pools on the device."""
        return SparsePools(self._layers, self.page, sizes, self._device)


class PlainSparseMla(PlainNetwork[SparsePools, SparseStep]):
    """The network with an indexer in each layer, in plain numbers."""

    def __init__(self, config: MlaConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights. Raises ConfigFault where records cannot be packed as asked."""
        # Indexer keys lie in pages of their own.
        tokens = max(numbers.page_tokens, PAGE_KEYS)
        self._sparse = _Sparse(config, numbers, tokens)
        wired = decoder(config, SparseAttention, _kinds(numbers), ranks)
        super().__init__(wired, numbers, self._sparse.paged, page_tokens=tokens)

    def pools(self, sizes: PoolSizes) -> SparsePools:
        """Return pools on the device; see `Network`."""
        return self._sparse.pools(sizes)

    def step(self, batch: ForwardBatch, pools: SparsePools) -> SparseStep:
        """Return what the layers of a step share."""
        return SparseStep(batch, pools, self._sparse.ropes, chosen=self._sparse.chosen)


class CudaSparseMla(CudaDecoder[SparsePools, PackedStep]):
    """The network with an indexer in each layer, on a Hopper GPU; what it caches is packed."""

    def __init__(self, config: MlaConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights."""
        assert numbers.records == "fp8"
        self.config, self._sparse = config, _Sparse(config, numbers, PAGE_TOKENS)
        kinds = Bf16Kinds(numbers.device, deterministic=numbers.deterministic)
        wired = decoder(config, SparseAttention, kinds, ranks)
        super().__init__(wired, numbers, self._sparse.paged)

    @property
    def page_layout(self) -> SparsePage:
        """Return what a page of a layer holds."""
        return self._sparse.page

    def pools(self, sizes: PoolSizes) -> SparsePools:
        """Return pools on the device; see `Network`."""
        return self._sparse.pools(sizes)

    def step(self, batch: ForwardBatch, pools: SparsePools) -> PackedStep:
        """Return what the layers of a step of chunks share."""
        places = of_chunks(batch, self._tree, self.device)
        if self._numbers.deterministic:
            return self.placed(places, pools)
        choice = ChunkChoice(batch, places, page_tokens=PAGE_TOKENS, chosen=self._sparse.chosen)
        return self._stepped(places, pools, choice)

    def placed(self, places: PagePlaces, pools: SparsePools) -> PackedStep:
        """Return the step of tokens in these places, each of which chooses alone."""
        choice = TokenChoice(places, page_tokens=PAGE_TOKENS, chosen=self._sparse.chosen)
        return self._stepped(places, pools, choice)

    def _stepped(self, places: PagePlaces, pools: SparsePools, choice: Choice) -> PackedStep:
        deterministic = self._numbers.deterministic
        return PackedStep(places, pools, self._sparse.ropes, choice, deterministic=deterministic)


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
