"""Mixture of experts: the router's choice, and one expert that every token passes."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.moe import moe
from jit_kernels.silu_mul import silu_mul
from layers.blocks.router import Router
from layers.linear.plain import Linear
from layers.models.deepseek_v4.config import ModelConfig
from layers.parallel.shares import Shards

__all__ = ["Experts"]


class Experts:
    """Routed and shared experts of one layer.

    gate_up  [experts, 2 * inner, d]   W1 rows, then W3 rows
    down     [experts, d, inner]       W2
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        *,
        shards: Shards,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate the weights of layer `layer`."""
        width, inner = config.hidden_size, config.moe_intermediate_size
        count = shards.share(config.n_routed_experts)
        self._shards, self._first = shards, shards.first(config.n_routed_experts)
        self._limit = config.swiglu_limit
        gate = {"gate": config.n_routed_experts}
        self._gate = Linear(width, gate, dtype=torch.float32, device=device)
        self._router = Router(config, layer, device)
        self._gate_up = torch.zeros((count, 2 * inner, width), dtype=dtype, device=device)
        self._down = torch.zeros((count, width, inner), dtype=dtype, device=device)
        self._shared_in = Linear(width, {"w1": inner, "w3": inner}, dtype=dtype, device=device)
        self._shared_out = Linear(inner, {"w2": width}, dtype=dtype, device=device)

    def __call__(self, x: Tensor, input_ids: Tensor) -> Tensor:
        """Return the experts' sum, [T, d] in the dtype of `x`.

        x          [T, d] normed input
        input_ids  [T] int64, which layers with a table route by
        """
        experts, weights = self._router(self._gate(x, out_dtype=torch.float32), input_ids)
        routed = moe(x, experts, weights, gate_up=self._gate_up, down=self._down, limit=self._limit)
        hidden = self._shared_in(x, out_dtype=torch.float32)
        hidden = silu_mul(hidden, limit=self._limit, out_dtype=x.dtype)
        shared = self._shared_out(hidden, out_dtype=torch.float32)
        return self._shards.all_reduce(routed + shared).to(x.dtype)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        yield from self._gate.named_weights(prefix)
        yield from self._router.named_weights(f"{prefix}gate.")
        inner = self._down.shape[2]
        for expert in range(self._down.shape[0]):
            name = f"{prefix}experts.{self._first + expert}."
            yield f"{name}w1.weight", self._gate_up[expert, :inner]
            yield f"{name}w3.weight", self._gate_up[expert, inner:]
            yield f"{name}w2.weight", self._down[expert]
        for part in (self._shared_in, self._shared_out):
            yield from part.named_weights(f"{prefix}shared_experts.")
