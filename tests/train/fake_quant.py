"""Straight-through rounding: forward as the server will store a number, backward as if nothing.

The roundings are the server's own functions, so that what training meets is what is served.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from jit_kernels.indexer_keys.reference import (
    decode_keys,
    encode_keys,
    hadamard,
    quantise_queries,
)
from jit_kernels.kv_records.reference import decode_records, encode_records
from layers.weights.quant import FP8_BLOCK, dequantise_fp8, quantise_fp8
from tests.train.storage import computed_in, stored_as


class _Replace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        """Return `rounded`."""
        return rounded.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Hand the gradient to `x`."""
        return grads[0], None


def straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """Return `rounded` with the gradient of `x`; both have one shape."""
    result: Tensor = _Replace.apply(x, rounded.detach())  # type: ignore[assignment]
    return result


def round_records(kv: Tensor, rope_channels: int) -> Tensor:
    """Return `kv` [M, D] as it comes back from packed records, float32."""
    with torch.no_grad():
        rows = encode_records(kv, "fp8", rope_channels)
        rounded = decode_records(rows, "fp8", kv.shape[1], rope_channels)
    return straight_through(kv, rounded)


def round_index_keys(keys: Tensor) -> Tensor:
    """Return indexer keys [M, C], transformed, as they come back from the pool, float32."""
    keys = hadamard(keys)
    with torch.no_grad():
        rounded = decode_keys(encode_keys(keys, "fp8"), "fp8")
    return straight_through(keys, rounded)


def round_index_queries(q: Tensor) -> Tensor:
    """Return indexer queries [N, H, C], transformed and rounded, float32."""
    q = hadamard(q)
    with torch.no_grad():
        codes, scales = quantise_queries(q)
    return straight_through(q, codes * scales.unsqueeze(-1))


def working_weights(
    parameters: Mapping[str, Tensor], dtype: torch.dtype, *, rounded: bool
) -> dict[str, Tensor]:
    """Return every parameter in the dtype it is computed with, differentiably.

    rounded  round each to its file format first
    """
    result = dict(parameters)
    if rounded:
        result |= _rounded_blocks(parameters)
        for name, tensor in parameters.items():
            if stored_as(name) == "bf16":
                stored = tensor.detach().to(torch.bfloat16).to(torch.float32)
                result[name] = straight_through(tensor, stored)
    return {name: tensor.to(computed_in(name, dtype)) for name, tensor in result.items()}


def _rounded_blocks(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round the fp8 matrices, those of one width and of whole blocks of rows in one go."""
    groups: dict[object, list[str]] = {}
    for name, tensor in parameters.items():
        if stored_as(name) == "fp8":
            whole = tensor.shape[0] % FP8_BLOCK == 0
            groups.setdefault(tensor.shape[1] if whole else name, []).append(name)
    result: dict[str, Tensor] = {}
    for names in groups.values():
        with torch.no_grad():
            together = torch.cat([parameters[name] for name in names])
            codes, scale = quantise_fp8(together)
            dequantise_fp8(codes, scale, together)
        parts = together.split([parameters[name].shape[0] for name in names])
        for name, part in zip(names, parts, strict=True):
            result[name] = straight_through(parameters[name], part)
    return result
