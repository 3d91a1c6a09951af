"""Routed experts with biases in C; `jit_kernels/moe/host.c` has both kinds."""

import torch

from jit_kernels.host import by_rows, function, raise_fault, rows_of

_biased_moe = function("biased_moe", "pppppippffpiiiii")


def biased_moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    biases: tuple[torch.Tensor, torch.Tensor],
    limit: float,
    alpha: float,
    invariant: bool,
) -> torch.Tensor:
    """Run the chosen experts of each row; see `jit_kernels.biased_moe.biased_moe`."""
    del invariant
    (count, width, inner), top_k = down.shape, experts.shape[1]
    rows, experts, weights = rows_of(x).contiguous(), experts.contiguous(), weights.contiguous()
    gate_up, down = gate_up.contiguous(), down.contiguous()
    out = torch.empty(x.shape, dtype=torch.float32)
    x_at, experts_at, weights_at = rows.data_ptr(), experts.data_ptr(), weights.data_ptr()
    matrices = (gate_up.data_ptr(), down.data_ptr(), down.dtype is torch.bfloat16)
    into, back = biases
    rest, out_at = (into.data_ptr(), back.data_ptr(), limit, alpha), out.data_ptr()

    def run(first: int, last: int) -> None:
        code = _biased_moe(
            *(x_at + 4 * first * width, experts_at + 8 * first * top_k),
            *(weights_at + 4 * first * top_k, *matrices, *rest, out_at + 4 * first * width),
            *(last - first, top_k, count, width, inner),
        )
        raise_fault(code)

    by_rows(run, x.shape[0])
    return out
