"""Indexer queries in Triton: the Hadamard transform is a product with a matrix of signs.

Numbers enter it as the sum of two bfloat16, exact to 16 bits, and signs are exact; so all but one
in some ten thousand codes are those of float32. A program goes over several tokens to keep the
matrix.
"""

import functools

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import INTERPRETED, e4m3_codes, power_of_two, scale_exponent
from jit_kernels.indexer_queries.reference import padded_heads

WARPS = 4
# Programs of a processor, as many as its registers hold.
RESIDENT = 2


@triton.jit
def _signs(WIDTH: tl.constexpr) -> tl.tensor:
    """Return the Hadamard matrix of Sylvester's order, not normalised."""
    line = tl.arange(0, WIDTH)
    both = line[:, None] & line[None, :]
    both ^= both >> 4
    # Bit n of the constant is the parity of n.
    odd = (0x6996 >> (both & 15)) & 1
    signs = 1.0 - 2.0 * odd.to(tl.float32)
    return signs if INTERPRETED else signs.to(tl.bfloat16)


@triton.jit
def _transform(x: tl.tensor, signs: tl.tensor) -> tl.tensor:
    """Return `x @ signs`, x float32."""
    if INTERPRETED:
        return tl.dot(x, signs, input_precision="ieee")
    high = x.to(tl.bfloat16)
    low = (x - high.to(tl.float32)).to(tl.bfloat16)
    return tl.dot(low, signs, tl.dot(high, signs))


@triton.jit(do_not_specialize=["tokens"])
def _kernel(
    q_ptr: tl.tensor, q_stride: tl.tensor, weights_ptr: tl.tensor, weights_stride: tl.tensor,
    rotation_ptr: tl.tensor, codes_ptr: tl.tensor, out_ptr: tl.tensor, tokens: tl.tensor,
    scale: tl.tensor, H: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    TURNED: tl.constexpr, NORM: tl.constexpr,
) -> None:  # fmt: skip
    signs = _signs(WIDTH)
    head, column = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    real = head < H
    pair = tl.arange(0, WIDTH // 2) * 2 - (WIDTH - TURNED)
    token = tl.program_id(0).to(tl.int64)
    while token < tokens:
        at = q_ptr + token * q_stride + head[:, None] * WIDTH + column[None, :]
        x = tl.load(at, mask=real[:, None], other=0.0).to(tl.float32)
        turn = rotation_ptr + token * (2 * TURNED) + pair
        cos = tl.load(turn, mask=pair >= 0, other=1.0)[None, :]
        sin = tl.load(turn + TURNED + 1, mask=pair >= 0, other=0.0)[None, :]
        even, odd = tl.split(tl.reshape(x, [HEADS, WIDTH // 2, 2]))
        x = tl.join(even * cos - odd * sin, odd * cos + even * sin)
        y = _transform(tl.reshape(x, [HEADS, WIDTH]), signs) * NORM
        exponent = scale_exponent(tl.max(tl.abs(y), 1))
        codes = e4m3_codes(y * power_of_two(254 - exponent)[:, None])
        line = token * HEADS + head
        tl.store(codes_ptr + line[:, None] * WIDTH + column[None, :], codes)
        weight = tl.load(weights_ptr + token * weights_stride + head, mask=real, other=0.0)
        tl.store(out_ptr + line, weight.to(tl.float32) * power_of_two(exponent) * scale)
        token += tl.num_programs(0)


def indexer_queries(
    q: torch.Tensor, weights: torch.Tensor, rotation: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate, transform and round; see `jit_kernels.indexer_queries.indexer_queries`."""
    tokens, heads, width = q.shape
    padded = padded_heads(heads)
    codes = torch.empty((tokens, padded, width), dtype=torch.float8_e4m3fn, device=q.device)
    folded = torch.empty((tokens, padded), dtype=torch.float32, device=q.device)
    if not tokens:
        return codes, folded
    _kernel[(min(tokens, _programs(q.device)),)](
        *(q, q.stride(0), weights, weights.stride(0), rotation.contiguous()),
        *(codes.view(torch.uint8), folded, tokens, (heads * width) ** -0.5),
        H=heads,
        HEADS=padded,
        WIDTH=width,
        TURNED=rotation.shape[2],
        NORM=width**-0.5,
        num_warps=WARPS,
    )
    return codes, folded


@functools.cache
def _programs(device: torch.device) -> int:
    """Return how many programs the device runs at once."""
    if device.type != "cuda":
        return 2
    return RESIDENT * torch.cuda.get_device_properties(device).multi_processor_count
