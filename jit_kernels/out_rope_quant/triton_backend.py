"""Turning back and rounding in Triton: a program takes one head of several tokens.

So their scales, which lie column by column, are written side by side.
"""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import e4m3_codes, power_of_two, scale_exponent
from jit_kernels.quant_fp8.reference import GROUP, empty_scales
from jit_kernels.rms_norm.triton_backend import warps

# Tokens of a program: 8 scales fill a sector of memory.
TOKENS = 8


@triton.jit(do_not_specialize=["tokens"])
def _kernel(
    out_ptr: tl.tensor, out_stride: tl.tensor, rotation_ptr: tl.tensor, codes_ptr: tl.tensor,
    scales_ptr: tl.tensor, scale_stride: tl.tensor, tokens: tl.tensor, heads: tl.tensor,
    C: tl.constexpr, TURNED: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    GROUPS: tl.constexpr = WIDTH // 128
    head = tl.program_id(1)
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    live = (token < tokens)[:, None]
    column = tl.arange(0, WIDTH)
    mask = live & (column < C)[None, :]
    at = out_ptr + token[:, None] * out_stride + head * C + column[None, :]
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    pair = tl.arange(0, WIDTH // 2) * 2 - (C - TURNED)
    turned = live & ((pair >= 0) & (pair < TURNED))[None, :]
    turn = rotation_ptr + token[:, None] * (2 * TURNED) + pair[None, :]
    cos = tl.load(turn, mask=turned, other=1.0)
    sin = tl.load(turn + TURNED + 1, mask=turned, other=0.0)
    even, odd = tl.split(tl.reshape(x, [TOKENS, WIDTH // 2, 2]))
    x = tl.join(even * cos + odd * sin, odd * cos - even * sin)
    x = tl.reshape(x, [TOKENS, GROUPS, 128])
    exponent = scale_exponent(tl.max(tl.abs(x), 2))
    codes = e4m3_codes(x * power_of_two(254 - exponent)[:, :, None])
    at = codes_ptr + (token * heads + head)[:, None] * C + column[None, :]
    tl.store(at, tl.reshape(codes, [TOKENS, WIDTH]), mask=mask)
    group = tl.arange(0, GROUPS)
    line = (head * (C // 128) + group).to(tl.int64)[None, :]
    at = scales_ptr + line * scale_stride + token[:, None]
    tl.store(at, power_of_two(exponent), mask=live & (group * 128 < C)[None, :])


def out_rope_quant(out: torch.Tensor, rotation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn back and round, [T, H C]; see `jit_kernels.out_rope_quant.out_rope_quant`."""
    tokens, heads, width = out.shape
    codes = torch.empty((tokens, heads * width), dtype=torch.float8_e4m3fn, device=out.device)
    scales = empty_scales(tokens, heads * width // GROUP, out.device)
    if not tokens:
        return codes, scales
    group, block = min(TOKENS, triton.next_power_of_2(tokens)), triton.next_power_of_2(width)
    _kernel[(triton.cdiv(tokens, group), heads)](
        *(out, out.stride(0), rotation.contiguous(), codes.view(torch.uint8)),
        *(scales, scales.stride(1), tokens, heads),
        C=width,
        TURNED=rotation.shape[2],
        TOKENS=group,
        WIDTH=block,
        num_warps=warps(group * block),
    )
    return codes, scales
