"""The router: which experts a token goes to."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.route_topk import route_hashed, route_topk
from jit_kernels.tile_linear import tile_linear
from layers.config import ModelConfig

__all__ = ["Router"]


class Router:
    """Learned routing, or a table from token id to experts in the first layers; float32."""

    def __init__(self, config: ModelConfig, layer: int, device: torch.device) -> None:
        """Allocate the gate of layer `layer`, and its bias or its table."""
        experts, self._top_k = config.n_routed_experts, config.num_experts_per_tok
        self._scale = config.routed_scaling_factor
        self._gate = torch.zeros((experts, config.hidden_size), device=device)
        self._bias = self._table = None
        if layer < config.num_hash_layers:
            shape = (config.vocab_size, self._top_k)
            self._table = torch.zeros(shape, dtype=torch.int64, device=device)
        else:
            self._bias = torch.zeros(experts, device=device)

    def __call__(self, x: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (experts [T, k] int64, weights [T, k] float32) for `x` [T, d]."""
        logits = tile_linear(x, self._gate, out_dtype=torch.float32)
        if self._table is not None:
            return route_hashed(logits, self._table, input_ids, scale=self._scale)
        assert self._bias is not None
        return route_topk(logits, self._bias, top_k=self._top_k, scale=self._scale)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        yield f"{prefix}weight", self._gate
        if self._bias is not None:
            yield f"{prefix}bias", self._bias
        if self._table is not None:
            yield f"{prefix}tid2eid", self._table
