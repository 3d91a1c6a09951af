"""Gemma 3 as a `Model`: configuration, and the network on the CPU."""

from typing import Any

import torch

from layers.blocks.rope import HalfRope, frequencies
from layers.kinds import PlainKinds
from layers.models.contract import Settings
from layers.models.gemma3.config import GemmaConfig, parse_config
from layers.models.gemma3.network import GemmaDecoder
from layers.models.gpt_oss.model import WindowedNetwork
from layers.models.gpt_oss.pools import WindowLayout
from layers.models.plain_model import CpuModel
from layers.models.rope_fields import RopeFields
from layers.parallel.ranks import OneRank, Ranks

__all__ = ["GemmaModel", "read"]


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "GemmaModel":
    """Return the model of parsed files; see `layers.models.registry`."""
    return GemmaModel(parse_config(raw, generation, override))


class GemmaModel(CpuModel[GemmaConfig]):
    """A checkpoint's configuration; a `Model`."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> WindowedNetwork:
        """Return the network; see `Model`."""
        ranks, config = ranks or OneRank(), self.config
        numbers = self.numbers(device, settings, ranks)
        heads = ranks.shares.key_heads(config.key_heads).count
        layout = WindowLayout(
            config.sliding, config.window, heads, config.head_dim, numbers.record_dtype
        )

        def rope(fields: RopeFields) -> HalfRope:
            angles = frequencies(config.head_dim, fields.theta, fields.scaling)
            return HalfRope(angles, attention_factor=fields.attention_factor, device=device)

        full, sliding = map(rope, config.ropes)
        kinds = PlainKinds(device, torch.float32, stored=numbers.dtype)
        wired = GemmaDecoder(config, kinds, ranks)
        return WindowedNetwork(wired, numbers, layout, (full, sliding))
