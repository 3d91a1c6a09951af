"""These families as a `Model`: configuration, pools, and the network on the CPU."""

from typing import Any

import torch

from layers.blocks.rope import HalfRope, PairRope, frequencies
from layers.kinds import PlainKinds
from layers.models.contract import Settings
from layers.models.mla.config import MlaConfig, parse_config
from layers.models.mla.network import decoder
from layers.models.mla.pools import LatentPools
from layers.models.mla.step import LatentStep
from layers.models.plain_model import PAGE_TOKENS, CpuModel, Numbers, PlainNetwork
from layers.parallel.ranks import OneRank, Ranks
from layers.steps.forward_batch import ForwardBatch
from mem_cache.spec import Paged, PoolSizes

__all__ = ["MlaModel", "PlainMla", "read"]


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "MlaModel":
    """Return the model of parsed files; see `layers.models.registry`."""
    return MlaModel(parse_config(raw, generation, override))


class MlaModel(CpuModel[MlaConfig]):
    """A checkpoint's configuration; a `Model`."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "PlainMla":
        """Return the network; see `Model`."""
        ranks = ranks or OneRank()
        return PlainMla(self.config, self.numbers(device, settings, ranks), ranks)


class PlainMla(PlainNetwork[LatentPools, LatentStep]):
    """The network in plain numbers; every token attends in the same form."""

    def __init__(self, config: MlaConfig, numbers: Numbers, ranks: Ranks) -> None:
        """Allocate all weights."""
        fields, rope, device = config.heads, config.rope, numbers.device
        self._turned = fields.turned
        self._shape = (config.num_layers, PAGE_TOKENS, fields.latent + fields.turned)
        self._rope = (PairRope if config.interleaved else HalfRope)(
            frequencies(fields.turned, rope.theta, rope.scaling),
            attention_factor=rope.attention_factor,
            device=device,
        )
        layers, positions, channels = self._shape
        page = layers * positions * channels * numbers.record_dtype.itemsize
        kinds = PlainKinds(device, torch.float32, stored=numbers.dtype)
        super().__init__(decoder(config, kinds, ranks), numbers, Paged("latent", page))

    def pools(self, sizes: PoolSizes) -> LatentPools:
        """Return pools on the device; see `Network`."""
        numbers = self._numbers
        return LatentPools(self._shape, numbers.record_dtype, sizes, numbers.device)

    def step(self, batch: ForwardBatch, pools: LatentPools) -> LatentStep:
        """Return what the layers of a step share."""
        return LatentStep(batch, pools, self._rope, turned=self._turned)
