"""gpt-oss as a `Model`: configuration, pools, and the network on the CPU."""

from typing import Any

import torch

from layers.blocks.rope import HalfRope, frequencies
from layers.kinds import PlainKinds
from layers.models.contract import Settings
from layers.models.gpt_oss.config import GptOssConfig, parse_config
from layers.models.gpt_oss.network import decoder
from layers.models.gpt_oss.pools import WindowLayout, WindowPools
from layers.models.gpt_oss.step import WindowStep
from layers.models.plain_model import CpuModel, Numbers, PlainNetwork
from layers.models.wired import Wired
from layers.parallel.ranks import OneRank, Ranks
from layers.steps.forward_batch import ForwardBatch
from mem_cache.spec import CacheSpec, PoolSizes

__all__ = ["GptOssModel", "WindowedNetwork", "read"]


def read(
    raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]
) -> "GptOssModel":
    """Return the model of parsed files; see `layers.models.registry`."""
    return GptOssModel(parse_config(raw, generation, override))


class GptOssModel(CpuModel[GptOssConfig]):
    """A checkpoint's configuration; a `Model`."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "WindowedNetwork":
        """Return the network; see `Model`."""
        ranks, config = ranks or OneRank(), self.config
        numbers = self.numbers(device, settings, ranks)
        heads = ranks.shares.key_heads(config.key_heads).count
        layout = WindowLayout(
            config.sliding, config.window, heads, config.head_dim, numbers.record_dtype
        )
        angles = frequencies(config.head_dim, config.rope.theta, config.rope.scaling)
        rope = HalfRope(angles, attention_factor=config.rope.attention_factor, device=device)
        kinds = PlainKinds(device, torch.float32, stored=numbers.dtype)
        return WindowedNetwork(decoder(config, kinds, ranks), numbers, layout, (rope, rope))


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
