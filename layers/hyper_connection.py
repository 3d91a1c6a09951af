"""mHC: the streams a layer keeps, mixed into each block and back."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_pre, mhc_pre_norm
from layers.config import ModelConfig
from layers.norm import RmsNorm

__all__ = ["HyperConnection", "HyperHead"]


class HyperConnection:
    """The mixing weights around one block; float32."""

    def __init__(self, config: ModelConfig, *, name: str, device: torch.device) -> None:
        """Allocate the weights, called `name` plus _fn, _base, _scale in files."""
        count = config.hc_mult
        rows = (2 + count) * count
        self._name = name
        self._config = config
        self._fn = torch.zeros((rows, count * config.hidden_size), device=device)
        self._base = torch.zeros(rows, device=device)
        self._scale = torch.zeros(3, device=device)

    def pre(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the block's input [T, d], and what `post` needs: [T, N] and [T, N, N]."""
        config = self._config
        return mhc_pre(
            streams,
            self._fn,
            self._base,
            self._scale,
            iterations=config.hc_sinkhorn_iters,
            norm_eps=config.rms_norm_eps,
            hc_eps=config.hc_eps,
        )

    def pre_norm(self, streams: Tensor, norm: RmsNorm) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `pre` does, the input normed; the norm's epsilon is the model's."""
        config = self._config
        return mhc_pre_norm(
            streams,
            self._fn,
            self._base,
            self._scale,
            norm.weight,
            iterations=config.hc_sinkhorn_iters,
            norm_eps=config.rms_norm_eps,
            hc_eps=config.hc_eps,
        )

    def post(
        self,
        y: Tensor,
        streams: Tensor,
        post: Tensor,
        mixing: Tensor,
        *,
        next_settled: bool = False,
    ) -> Tensor:
        """Return the streams after the block computed `y`.

        next_settled  on the device, the launch after mixes these streams, by `pre_norm` or a head
        """
        return mhc_post(y, streams, post, mixing, next_settled=next_settled)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        yield f"{prefix}{self._name}_fn", self._fn
        yield f"{prefix}{self._name}_base", self._base
        yield f"{prefix}{self._name}_scale", self._scale


class HyperHead:
    """The mixing weights before the final norm; float32."""

    def __init__(self, config: ModelConfig, *, name: str, device: torch.device) -> None:
        """Allocate the weights, called `name` plus _fn, _base, _scale in files."""
        count = config.hc_mult
        self._name = name
        self._config = config
        self._fn = torch.zeros((count, count * config.hidden_size), device=device)
        self._base = torch.zeros(count, device=device)
        self._scale = torch.zeros(1, device=device)

    def __call__(self, streams: Tensor) -> Tensor:
        """Mix [T, N, d] into [T, d]."""
        config = self._config
        return mhc_head(
            streams,
            self._fn,
            self._base,
            self._scale,
            norm_eps=config.rms_norm_eps,
            hc_eps=config.hc_eps,
        )

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        yield f"{self._name}_fn", self._fn
        yield f"{self._name}_base", self._base
        yield f"{self._name}_scale", self._scale
