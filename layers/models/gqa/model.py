"""These families as a `Model`: configuration, pools, and the network on the CPU."""

from typing import Any

import torch

from layers.blocks.rope import HalfRope, frequencies
from layers.kinds import PlainKinds
from layers.models.contract import Settings
from layers.models.gqa.config import GqaConfig, parse_config
from layers.models.gqa.network import decoder
from layers.models.gqa.pools import KeyValuePools, PageShape
from layers.models.gqa.step import PagedStep
from layers.models.plain_model import PAGE_TOKENS, CpuModel, Numbers, PlainNetwork
from layers.parallel.ranks import OneRank, Ranks
from layers.steps.forward_batch import ForwardBatch
from mem_cache.spec import Paged, PoolSizes

__all__ = ["GqaModel", "PlainGqa", "read"]


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "GqaModel":
    """Return the model of parsed files; see `layers.models.registry`."""
    return GqaModel(parse_config(raw, generation, override))


class GqaModel(CpuModel[GqaConfig]):
    """A checkpoint's configuration; a `Model`."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "PlainGqa":
        """Return the network; see `Model`."""
        ranks = ranks or OneRank()
        return PlainGqa(self.config, self.numbers(device, settings, ranks), ranks)


class PlainGqa(PlainNetwork[KeyValuePools, PagedStep]):
    """The network in plain numbers."""

    def __init__(self, config: GqaConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights."""
        self._layers, device = config.num_layers, numbers.device
        heads = ranks.shares.groups(config.key_heads).count
        self._page = PageShape(PAGE_TOKENS, heads, config.head_dim, numbers.record_dtype)
        angles = frequencies(config.head_dim, config.rope.theta, config.rope.scaling)
        factor = config.rope.attention_factor
        self._rope = HalfRope(angles, attention_factor=factor, device=device)
        kinds = PlainKinds(device, torch.float32, stored=numbers.dtype)
        paged = Paged("kv", self._layers * self._page.bytes)
        super().__init__(decoder(config, kinds, ranks), numbers, paged)

    def pools(self, sizes: PoolSizes) -> KeyValuePools:
        """Return pools on the device; see `Network`."""
        return KeyValuePools(self._layers, self._page, sizes, self._numbers.device)

    def step(self, batch: ForwardBatch, pools: KeyValuePools) -> PagedStep:
        """Return what the layers of a step share."""
        return PagedStep(batch, pools, self._rope)
