"""Products of queries and keys in fp8, in Triton: keys are the rows, heads are added at the end."""

import triton
import triton.language as tl

from jit_kernels.device_numbers import INTERPRETED
from jit_kernels.paged_attention.device_records import e4m3_numbers

__all__ = ["fp8_operand", "weighed_scores"]


@triton.jit
def fp8_operand(codes: tl.tensor) -> tl.tensor:
    """Return e4m3 bytes as an operand of a product."""
    if INTERPRETED:
        return e4m3_numbers(codes)
    return codes.to(tl.float8e4nv, bitcast=True)


@triton.jit
def weighed_scores(
    keys: tl.tensor, scales: tl.tensor, queries: tl.tensor, weights: tl.tensor,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the scores of KEYS keys for TOKENS tokens, [KEYS, TOKENS] float32.

    keys     [KEYS, C] operand, `scales` [KEYS] float32
    queries  [TOKENS * HEADS, C] operand, `weights` [TOKENS * HEADS] float32
    """
    if INTERPRETED:
        products = tl.dot(keys, tl.trans(queries), input_precision="ieee")
    else:
        products = tl.dot(keys, tl.trans(queries))
    wanted = tl.maximum(products, 0.0) * weights[None, :]
    added = tl.sum(tl.reshape(wanted, [KEYS, TOKENS, HEADS]), 2)
    return added * scales[:, None]
