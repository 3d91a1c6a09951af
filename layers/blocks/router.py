"""The router: which experts a token goes to."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.gate_topk import gate_hashed, gate_topk
from jit_kernels.route_topk import route_hashed, route_topk
from layers.models.deepseek_v4.config import ModelConfig

__all__ = ["Router"]


class Router:
    """Routing by scores of a gate, or by a table from token ids in the first layers; float32."""

    def __init__(self, config: ModelConfig, layer: int, device: torch.device) -> None:
        """Allocate the bias of layer `layer`, or its table."""
        self._top_k, self._scale = config.num_experts_per_tok, config.routed_scaling_factor
        self._bias = self._table = None
        if layer < config.num_hash_layers:
            shape = (config.vocab_size, self._top_k)
            self._table = torch.zeros(shape, dtype=torch.int64, device=device)
        else:
            self._bias = torch.zeros(config.n_routed_experts, device=device)

    def __call__(self, logits: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (experts [T, k] int64, weights [T, k] float32).

        logits  [T, experts] float32, what the gate gives
        """
        if self._table is not None:
            return route_hashed(logits, self._table, input_ids, scale=self._scale)
        assert self._bias is not None
        return route_topk(logits, self._bias, top_k=self._top_k, scale=self._scale)

    def of(
        self, x: Tensor, gate: Tensor, input_ids: Tensor, *, invariant: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return what a call with the gate's logits would.

        x          [T, d] bfloat16
        gate       [experts, d] bfloat16
        invariant  a token's bits depend on its own numbers alone
        """
        scale = self._scale
        if self._table is not None:
            return gate_hashed(x, gate, self._table, input_ids, scale=scale, invariant=invariant)
        assert self._bias is not None
        top_k = self._top_k
        return gate_topk(x, gate, self._bias, top_k=top_k, scale=scale, invariant=invariant)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        if self._bias is not None:
            yield f"{prefix}bias", self._bias
        if self._table is not None:
            yield f"{prefix}tid2eid", self._table
