"""DeepSeek V4 as a differentiable function of parameters by published name.

Batches are rows of one length from position 0. `layers.models.deepseek_v4` serves what is trained
here; the tests hold the two to each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from jit_kernels.rms_norm.reference import rms_norm
from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.config import ModelConfig
from layers.models.deepseek_v4.model import angles
from tests.train.attention import AttentionLayer, IndexReport
from tests.train.experts import RoutingReport, experts
from tests.train.fake_quant import working_weights
from tests.train.mode import Mode
from tests.train.named import Named
from tests.train.places import Places, grid, places_of
from tests.train.regions import Regions
from tests.train.streams import mix_head, mix_in, mix_out


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a forward returns.

    logits   [B, T, vocab] float32
    index    layer -> what its indexer did
    routing  layer -> how its tokens were routed
    """

    logits: Tensor
    index: dict[int, IndexReport]
    routing: dict[int, RoutingReport]


class V4Trainee:
    """The network's shape, without its parameters."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype = torch.float32,
        regions: Regions | None = None,
    ) -> None:
        """Keep the shape.

        dtype  of matrices and activations; what the server keeps in float32 is float32 here too
        """
        self.config, self._dtype = config, dtype
        self._run = regions or Regions()
        self._ropes: dict[torch.device, RopeFrequencies] = {}

    def __call__(self, parameters: Mapping[str, Tensor], tokens: Tensor, mode: Mode) -> Outcome:
        """Run rows of tokens.

        parameters  by published name, dense and float32; routing tables int64
        tokens      [B, T] int64
        """
        length = tokens.shape[1]
        padded = F.pad(tokens, (0, -length % grid(self.config)))
        places = places_of(padded, self.config, self._rope_on(tokens.device))
        working = working_weights(parameters, self._dtype, rounded=mode.round_weights)
        weights = Named(working)
        streams = F.embedding(places.tokens, weights["embed.weight"])
        streams = streams.unsqueeze(1).expand(-1, self.config.hc_mult, -1)
        index: dict[int, IndexReport] = {}
        routing: dict[int, RoutingReport] = {}
        for layer in range(self.config.num_hidden_layers):
            arguments = (streams, weights.under(f"layers.{layer}."), places, layer, mode)
            if mode.recompute:
                kept = checkpoint(
                    self._layer, *arguments, use_reentrant=False, preserve_rng_state=False
                )
                result = cast(tuple[Tensor, IndexReport, RoutingReport], kept)
            else:
                result = self._layer(*arguments)
            streams, index[layer], routing[layer] = result
        logits = self._head(streams, weights).unflatten(0, (places.rows, -1))
        return Outcome(logits[:, :length], index, routing)

    def _rope_on(self, device: torch.device) -> RopeFrequencies:
        """Return the frequencies, made once for a device."""
        if device not in self._ropes:
            self._ropes[device] = angles(self.config, device)
        return self._ropes[device]

    def _layer(
        self, streams: Tensor, weights: Named, places: Places, layer: int, mode: Mode
    ) -> tuple[Tensor, IndexReport, RoutingReport]:
        """Return the streams [N, S, d] after a layer, and what its parts tell."""
        config, run = self.config, self._run
        attention = AttentionLayer(config, config.compress_ratios[layer], mode, run)
        x, post, mixing = self._mixed_in(streams, weights, "attn")
        y, index = attention(x, weights.under("attn."), places)
        streams = run(mix_out)(y, streams, post, mixing)
        x, post, mixing = self._mixed_in(streams, weights, "ffn")
        y, routing = experts(x, weights.under("ffn."), places, config=config, run=run)
        return run(mix_out)(y, streams, post, mixing), index, routing

    def _mixed_in(
        self, streams: Tensor, weights: Named, part: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        return self._run(_mixed_and_normed)(
            streams,
            (weights[f"hc_{part}_fn"], weights[f"hc_{part}_base"], weights[f"hc_{part}_scale"]),
            weights[f"{part}_norm.weight"],
            config.hc_sinkhorn_iters,
            config.rms_norm_eps,
            config.hc_eps,
        )

    def _head(self, streams: Tensor, weights: Named) -> Tensor:
        config = self.config
        names = ("hc_head_fn", "hc_head_base", "hc_head_scale")
        fn, base, scale = (weights[name] for name in names)
        x = self._run(mix_head)(streams, fn, base, scale, config.rms_norm_eps, config.hc_eps)
        x = self._run(rms_norm)(x, weights["norm.weight"], config.rms_norm_eps, x.dtype)
        return F.linear(x, weights["head.weight"]).to(torch.float32)


def _mixed_and_normed(
    streams: Tensor,
    mixing: tuple[Tensor, Tensor, Tensor],
    norm: Tensor,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a block's normed input, and what its result is mixed back with."""
    x, post, back = mix_in(streams, *mixing, iterations, norm_eps, hc_eps)
    return rms_norm(x, norm, norm_eps, x.dtype), post, back
