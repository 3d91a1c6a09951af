"""The router: which experts a token goes to."""

import torch
from torch import Tensor

from jit_kernels.route_topk import route_hashed, route_topk
from layers.linear.contract import Linear, Named

__all__ = ["Router"]


class Router:
    """Routing by scores of a gate, or by a table from token ids; float32."""

    def __init__(
        self,
        gate: Linear,
        experts: int,
        *,
        chosen: int,
        scale: float,
        hashed_ids: int,
        device: torch.device,
    ) -> None:
        """Allocate the bias, or the table.

        gate        [T, d] -> [T, experts] float32; its part is called "gate"
        chosen      experts of a token
        scale       of the weights
        hashed_ids  token ids that the table has rows for; 0: experts are chosen by score
        """
        self._gate, self._chosen, self._scale = gate, chosen, scale
        self._bias = self._table = None
        if hashed_ids:
            self._table = torch.zeros((hashed_ids, chosen), dtype=torch.int64, device=device)
        else:
            self._bias = torch.zeros(experts, device=device)

    def __call__(self, x: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (experts [T, k] int64, weights [T, k] float32).

        x          [T, d] normed input
        input_ids  [T] int64
        """
        logits = self._gate(self._gate.rows(x))
        if self._table is not None:
            return route_hashed(logits, self._table, input_ids, scale=self._scale)
        assert self._bias is not None
        return route_topk(logits, self._bias, top_k=self._chosen, scale=self._scale)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._gate.named_weights(prefix)
        if self._bias is not None:
            yield f"{prefix}gate.bias", self._bias
        if self._table is not None:
            yield f"{prefix}gate.tid2eid", self._table
