"""Numbers of few bits, in Triton: e4m3 codes, power-of-two scales, bfloat16.

Triton's interpreter truncates where the device rounds to the nearest even number. Under it the
same bits come out of integer arithmetic.
"""

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def scale_exponent(amax: tl.tensor) -> tl.tensor:
    """Return the biased exponent of 2^ceil(log2(max(amax, 1e-4) / 448)), int32.

    448 is 1.75 * 2^8: the exponent is that of `amax` less 8, and one more if the mantissa is
    above 1.75. No division, so no rounding.
    """
    bits = tl.maximum(amax, 1e-4).to(tl.int32, bitcast=True)
    return ((bits + 0x1FFFFF) >> 23) - 8


@triton.jit
def power_of_two(exponent: tl.tensor) -> tl.tensor:
    """Return 2^(e - 127) in float32 for a biased exponent, int32 in 1..254."""
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_codes(x: tl.tensor) -> tl.tensor:
    """Return the e4m3 bytes of float32 numbers in -448..448, to the nearest even; NaN stays NaN."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        # Down to 2^-6 the mantissa is cut to three bits; below, 2^14 has steps of 2^-9.
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
        steps = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        code = tl.where(size >= 0x3C800000, normal, steps)
        code = tl.where(size > 0x7F800000, 0x7F, code)
        return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
    return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def narrow(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Return float32 numbers in `dtype`, to the nearest even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded)
        return rounded.to(tl.int16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit
def dot_bf16(a: tl.tensor, b: tl.tensor, sums: tl.tensor) -> tl.tensor:
    """Return `sums + a @ b` for bfloat16 factors; the interpreter cannot multiply those."""
    if INTERPRETED:
        return sums + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, sums)
