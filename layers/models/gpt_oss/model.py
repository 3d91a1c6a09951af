"""gpt-oss as a `Model`: configuration, pools, and the network on a device."""

from typing import Any

import torch

from layers.blocks.rope import HalfRope, frequencies
from layers.kinds import Bf16Kinds, PlainKinds
from layers.models.contract import Settings
from layers.models.cuda_decoder import CudaDecoder
from layers.models.gpt_oss.bf16_step import Bf16WindowStep
from layers.models.gpt_oss.config import GptOssConfig, check_geometry_of_kernels, parse_config
from layers.models.gpt_oss.network import decoder
from layers.models.gpt_oss.pools import WindowLayout, WindowPools
from layers.models.gpt_oss.step import WindowStep
from layers.models.plain_model import CpuModel, Numbers, PlainNetwork
from layers.models.wired import Wired
from layers.parallel.ranks import OneRank, Ranks
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_places import PagePlaces
from mem_cache.spec import CacheSpec, PoolSizes

__all__ = ["CudaGptOss", "GptOssModel", "WindowedNetwork", "read"]


def read(
    raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]
) -> "GptOssModel":
    """Return the model of parsed files; see `layers.models.registry`."""
    return GptOssModel(parse_config(raw, generation, override))


class GptOssModel(CpuModel[GptOssConfig]):
    """A checkpoint's configuration; a `Model`."""

    def check_cuda(self) -> None:
        """Raise ConfigFault, naming the field, for a geometry that the kernels do not take."""
        check_geometry_of_kernels(self.config)

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "WindowedNetwork | CudaGptOss":
        """Return the network; see `Model`."""
        ranks, config = ranks or OneRank(), self.config
        numbers = self.numbers(device, settings, ranks)
        if device.type == "cuda":
            return CudaGptOss(config, numbers, ranks)
        layout, rope = _layout(config, numbers, ranks), _rope(config, device)
        kinds = PlainKinds(device, torch.float32, stored=numbers.dtype)
        return WindowedNetwork(decoder(config, kinds, ranks), numbers, layout, (rope, rope))


def _layout(config: GptOssConfig, numbers: Numbers, ranks: Ranks) -> WindowLayout:
    """Return what layers of this rank keep."""
    heads = ranks.shares.key_heads(config.key_heads).count
    return WindowLayout(config.sliding, config.window, heads, config.head_dim, numbers.record_dtype)


def _rope(config: GptOssConfig, device: torch.device) -> HalfRope:
    angles = frequencies(config.head_dim, config.rope.theta, config.rope.scaling)
    return HalfRope(angles, attention_factor=config.rope.attention_factor, device=device)


class WindowedNetwork(PlainNetwork[WindowPools, WindowStep]):
    """A network in plain numbers, some of whose layers attend a window."""

    def __init__(
        self,
        wired: Wired[WindowStep],
        numbers: Numbers,
        layout: WindowLayout,
        ropes: tuple[HalfRope, HalfRope],
    ) -> None:
        """Take the network with its weights allocated, and what its layers keep.

        ropes  of layers that attend everything, and of those with a window
        """
        self._layout, self._ropes = layout, ropes
        self._cache = layout.cache(numbers.records, numbers.drafts)
        super().__init__(wired, numbers, self._cache.paged[0])

    @property
    def cache(self) -> CacheSpec:
        """What the cache has to hold."""
        return self._cache

    def pools(self, sizes: PoolSizes) -> WindowPools:
        """Return pools on the device; see `Network`."""
        return WindowPools(self._layout, sizes, self._numbers.device)

    def step(self, batch: ForwardBatch, pools: WindowPools) -> WindowStep:
        """Return what the layers of a step share."""
        return WindowStep(batch, pools, self._cache.tree, self._ropes)


class CudaGptOss(CudaDecoder[WindowPools, Bf16WindowStep]):
    """The network on a Hopper GPU."""

    def __init__(self, config: GptOssConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights."""
        self.config, device = config, numbers.device
        self._layout, self._rope = _layout(config, numbers, ranks), _rope(config, device)
        self._cache = self._layout.cache(numbers.records, numbers.drafts)
        kinds = Bf16Kinds(device, deterministic=numbers.deterministic)
        super().__init__(decoder(config, kinds, ranks), numbers, self._cache.paged[0])

    @property
    def cache(self) -> CacheSpec:
        """What the cache has to hold."""
        return self._cache

    def pools(self, sizes: PoolSizes) -> WindowPools:
        """Return pools on the device; see `Network`."""
        return WindowPools(self._layout, sizes, self.device)

    def placed(self, places: PagePlaces, pools: WindowPools) -> Bf16WindowStep:
        """Return the step of tokens in these places."""
        deterministic = self._numbers.deterministic
        return Bf16WindowStep(places, pools, self._rope, deterministic=deterministic)
