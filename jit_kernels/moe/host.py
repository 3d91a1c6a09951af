"""Routed experts in C."""

from collections.abc import Callable

import torch

from jit_kernels.host import by_rows, function, raise_fault, rows_of

_moe = function("moe", "pppppifpiiiii")


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
    (count, width, inner), top_k = down.shape, experts.shape[1]
    rows, experts, weights = rows_of(x).contiguous(), experts.contiguous(), weights.contiguous()
    gate_up, down = gate_up.contiguous(), down.contiguous()
    out = torch.empty(x.shape, dtype=torch.float32)
    x_at, experts_at, weights_at = rows.data_ptr(), experts.data_ptr(), weights.data_ptr()
    matrices = (gate_up.data_ptr(), down.data_ptr(), down.dtype is torch.bfloat16)
    out_at = out.data_ptr()

    def run(first: int, last: int) -> None:
        code = _moe(
            *(x_at + 4 * first * width, experts_at + 8 * first * top_k),
            *(weights_at + 4 * first * top_k, *matrices, limit, out_at + 4 * first * width),
            *(last - first, top_k, count, width, inner),
        )
        raise_fault(code)

    by_rows(run, x.shape[0])
    return out if plus is None else out + plus()
