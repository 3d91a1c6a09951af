"""Routed experts in plain torch: the rows of one expert after another's."""

from collections.abc import Callable

import torch

from jit_kernels.silu_mul.reference import silu_mul
from jit_kernels.tile_linear.reference import tile_linear


def moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    limit: float,
    invariant: bool,
    plus: Callable[[], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Run the chosen experts of each row; see `jit_kernels.moe.moe`."""
    tokens, top_k = experts.shape
    flat = experts.flatten()
    order = torch.argsort(flat, stable=True)
    counts: list[int] = torch.bincount(flat, minlength=down.shape[0]).tolist()
    outputs = [x.new_empty((0, x.shape[1]), dtype=torch.float32)]
    for expert, rows in enumerate(x.index_select(0, order // top_k).split(counts)):
        if rows.shape[0]:
            hidden = tile_linear(rows, gate_up[expert], torch.float32)
            hidden = silu_mul(hidden, limit, x.dtype)
            outputs.append(tile_linear(hidden, down[expert], torch.float32))
    places = torch.argsort(order)
    by_choice = torch.cat(outputs).index_select(0, places).view(tokens, top_k, x.shape[1])
    result = by_choice[:, 0] * weights[:, :1]
    for slot in range(1, top_k):
        result = result + by_choice[:, slot] * weights[:, slot : slot + 1]
    return result if plus is None else result + plus()
