"""These families as a `Model`: configuration, pools, and the network on a device."""

from typing import Any

import torch

from layers.blocks.rope import HalfRope, frequencies
from layers.kinds import Bf16Kinds, PlainKinds
from layers.models.contract import Settings
from layers.models.cuda_decoder import CudaDecoder
from layers.models.gqa.config import GqaConfig, check_geometry_of_kernels, parse_config
from layers.models.gqa.network import decoder
from layers.models.gqa.pools import KeyValuePools, PageShape
from layers.models.gqa.step import Bf16Step, PagedStep
from layers.models.plain_model import PAGE_TOKENS, CpuModel, Numbers, PlainNetwork
from layers.parallel.ranks import OneRank, Ranks
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_places import PagePlaces
from mem_cache.spec import Paged, PoolSizes

__all__ = ["CudaGqa", "GqaModel", "PlainGqa", "read"]


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "GqaModel":
    """Return the model of parsed files; see `layers.models.registry`."""
    return GqaModel(parse_config(raw, generation, override))


class GqaModel(CpuModel[GqaConfig]):
    """A checkpoint's configuration; a `Model`."""

    def check_cuda(self) -> None:
        """Raise ConfigFault, naming the field, for a geometry that the kernels do not take."""
        check_geometry_of_kernels(self.config)

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "PlainGqa | CudaGqa":
        """Return the network; see `Model`."""
        ranks = ranks or OneRank()
        numbers = self.numbers(device, settings, ranks)
        if device.type == "cuda":
            return CudaGqa(self.config, numbers, ranks)
        return PlainGqa(self.config, numbers, ranks)


def _page(config: GqaConfig, numbers: Numbers, ranks: Ranks, tokens: int) -> PageShape:
    """Return what a page of this rank holds in a layer."""
    heads = ranks.shares.key_heads(config.key_heads).count
    return PageShape(tokens, heads, config.head_dim, numbers.record_dtype)


def _rope(config: GqaConfig, device: torch.device) -> HalfRope:
    angles = frequencies(config.head_dim, config.rope.theta, config.rope.scaling)
    return HalfRope(angles, attention_factor=config.rope.attention_factor, device=device)


class PlainGqa(PlainNetwork[KeyValuePools, PagedStep]):
    """The network in plain numbers."""

    def __init__(self, config: GqaConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights."""
        self._layers, self._windows = config.num_layers, config.windows
        device = numbers.device
        self._page = _page(config, numbers, ranks, numbers.page_tokens)
        self._rope = _rope(config, device)
        kinds = PlainKinds(device, torch.float32, stored=numbers.dtype)
        paged = Paged("kv", self._layers * self._page.bytes)
        super().__init__(decoder(config, kinds, ranks), numbers, paged)

    def pools(self, sizes: PoolSizes) -> KeyValuePools:
        """Return pools on the device; see `Network`."""
        return KeyValuePools(self._layers, self._page, sizes, self._numbers.device)

    def step(self, batch: ForwardBatch, pools: KeyValuePools) -> PagedStep:
        """Return what the layers of a step share."""
        return PagedStep(batch, pools, self._rope, self._windows)


class CudaGqa(CudaDecoder[KeyValuePools, Bf16Step]):
    """The network on a Hopper GPU."""

    def __init__(self, config: GqaConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights."""
        self.config, self._layers, device = config, config.num_layers, numbers.device
        self._page = _page(config, numbers, ranks, PAGE_TOKENS)
        self._rope = _rope(config, device)
        kinds = Bf16Kinds(device, deterministic=numbers.deterministic)
        paged = Paged("kv", self._layers * self._page.bytes)
        super().__init__(decoder(config, kinds, ranks), numbers, paged)

    def pools(self, sizes: PoolSizes) -> KeyValuePools:
        """Return pools on the device; see `Network`."""
        return KeyValuePools(self._layers, self._page, sizes, self.device)

    def placed(self, places: PagePlaces, pools: KeyValuePools) -> Bf16Step:
        """Return the step of tokens in these places."""
        deterministic = self._numbers.deterministic
        return Bf16Step(places, pools, self._rope, deterministic=deterministic)
