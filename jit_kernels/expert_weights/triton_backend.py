"""Numbers inside expert weights on the way to a product, in Triton."""

import triton
import triton.language as tl

from jit_kernels.device_numbers import INTERPRETED, power_of_two

# 2^126 and 2^120: what exponents of e2m1 and e4m3 lack when their bits stand in a bfloat16.
_FP4_BIAS = tl.constexpr(126)
_FP8_BIAS_BITS = tl.constexpr(0x7B800000)

_FP4_ASM = tl.constexpr("""
{
.reg .b32 a, b;
and.b32 a, $4, 0x81C081C0;
mul.bf16x2 $0, a, $5;
shl.b32 a, $4, 3;
and.b32 a, a, 0x81C081C0;
mul.bf16x2 $1, a, $5;
shl.b32 a, $4, 6;
and.b32 a, a, 0x01C001C0;
shl.b32 b, $4, 1;
lop3.b32 a, b, 0x80008000, a, 0xEA;
mul.bf16x2 $2, a, $5;
shr.b32 a, $4, 3;
and.b32 a, a, 0x01C001C0;
shl.b32 b, $4, 2;
lop3.b32 a, b, 0x80008000, a, 0xEA;
mul.bf16x2 $3, a, $5;
}
""")

_FP8_ASM = tl.constexpr("""
{
.reg .b32 a, b, bias;
mov.b32 bias, 0x7B807B80;
prmt.b32 a, $2, 0, 0x1404;
shr.b32 b, a, 4;
and.b32 b, b, 0x07F007F0;
lop3.b32 a, a, 0x80008000, b, 0xEA;
mul.bf16x2 $0, a, bias;
prmt.b32 a, $2, 0, 0x3424;
shr.b32 b, a, 4;
and.b32 b, b, 0x07F007F0;
lop3.b32 a, a, 0x80008000, b, 0xEA;
mul.bf16x2 $1, a, bias;
}
""")


@triton.jit
def fp4_scales(scales: tl.tensor, ROWS: tl.constexpr, GROUPS: tl.constexpr) -> tl.tensor:
    """Return the scale of each word, 2^126 times too large, of e8m0 bytes [ROWS, GROUPS]."""
    if INTERPRETED:
        # 2^(b - 1) may be beyond float32's least exponent, which numpy keeps and 2^127 is not.
        wide = power_of_two(scales.to(tl.int32) + _FP4_BIAS)
    else:
        wide = ((scales.to(tl.uint16) + _FP4_BIAS) << 7).to(tl.bfloat16, bitcast=True)
    return tl.reshape(tl.broadcast_to(wide[:, :, None], [ROWS, GROUPS, 8]), [ROWS, GROUPS * 8])


@triton.jit
def _fp4_part(
    words: tl.tensor, scales: tl.tensor, SIGN: tl.constexpr, SIZE: tl.constexpr
) -> tl.tensor:
    """Return one of the four numbers of each word in float32, as the interpreter can."""
    wide = words.to(tl.int32)
    bits = (((wide >> SIGN) & 1) << 31) | (((wide >> SIZE) & 7) << 22)
    return bits.to(tl.float32, bitcast=True) * scales


@triton.jit
def fp4_parts(words: tl.tensor, scales: tl.tensor) -> tl.tensor:
    """Return the four numbers of each word as bfloat16 tiles; float32 in the interpreter.

    words   [M, W] int16
    scales  [M, W] from `fp4_scales`
    Tile j has columns 32 g + 8 j + i at 8 g + i.
    """
    if INTERPRETED:
        return (
            _fp4_part(words, scales, 15, 6),
            _fp4_part(words, scales, 12, 3),
            _fp4_part(words, scales, 14, 0),
            _fp4_part(words, scales, 13, 9),
        )
    return tl.inline_asm_elementwise(
        _FP4_ASM,
        "=r,=r,=r,=r,r,r",
        [words, scales],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def fp8_numbers(codes: tl.tensor) -> tl.tensor:
    """Return e4m3 bytes as bfloat16; float32 in the interpreter. NaN becomes 480."""
    if INTERPRETED:
        wide = codes.to(tl.int32)
        bits = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20)
        return bits.to(tl.float32, bitcast=True) * _interpreted_bias()
    return tl.inline_asm_elementwise(
        _FP8_ASM, "=r,=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4
    )


@triton.jit
def _interpreted_bias() -> tl.tensor:
    return tl.full([1, 1], _FP8_BIAS_BITS, tl.int32).to(tl.float32, bitcast=True)
