"""Which experts a token goes to, from what the gate multiplies: its product and routing."""

from collections.abc import Callable

import torch

from jit_kernels.bf16_linear import bf16_linear
from jit_kernels.checks import check_dtype, check_shape
from jit_kernels.registry import Backend, chosen, select
from jit_kernels.route_topk import check_choice, check_table, route_hashed, route_topk

__all__ = ["gate_hashed", "gate_topk"]

_Routing = Callable[..., tuple[torch.Tensor, torch.Tensor]]
_MODULE = "jit_kernels.gate_topk"


def _why_separate() -> str | None:
    """Return why the bits would not be those of two calls, None if they are."""
    alike = {bf16_linear: ("mixed", "deep_gemm"), route_topk: ("cuda",), route_hashed: ("cuda",)}
    for op, backends in alike.items():
        found = chosen("cuda").get(op.__name__)
        if found not in backends:
            return f"{op.__name__} is left to {found}"
    return None


def _selected(op: str) -> _Routing:
    return select(
        op,
        [
            Backend("cuda", f"{_MODULE}.cuda_backend:{op}", _why_separate, "cuda"),
            Backend("separate", f"{_MODULE}.separate_backend:{op}"),
            Backend("reference", f"{_MODULE}.reference:{op}"),
        ],
    )


_gate_topk, _gate_hashed = _selected("gate_topk"), _selected("gate_hashed")


def gate_topk(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    top_k: int,
    scale: float,
    invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `route_topk(bf16_linear(x, weight), bias)`.

    x          [T, d] bfloat16
    weight     [E, d] bfloat16
    bias       [E] float32
    invariant  a token's bits depend on its own numbers alone

    Of many tokens "cuda" makes both in one kernel, with the bits of `invariant`. Raises ShapeError.
    """
    _check(x, weight)
    check_choice(bias, top_k, weight.shape[0])
    return _gate_topk(x, weight, bias, top_k, scale, invariant)


def gate_hashed(
    x: torch.Tensor,
    weight: torch.Tensor,
    table: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    scale: float,
    invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `route_hashed(bf16_linear(x, weight), table, token_ids)`.

    x, weight, invariant  as of `gate_topk`
    table, token_ids      as of `route_hashed`

    The launch before may write x. Of many tokens "cuda" makes both in one kernel, with the bits of
    `invariant`. Raises ShapeError.
    """
    _check(x, weight)
    check_table(table, token_ids, x.shape[0])
    return _gate_hashed(x, weight, table, token_ids, scale, invariant)


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    check_dtype("x", x, torch.bfloat16)
    check_dtype("weight", weight, torch.bfloat16)
    check_shape("x", x, None, weight.shape[1])
