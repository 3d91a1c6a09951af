// Numbers as the device makes them: bytes of narrow formats, and its approximations, which are a few
// units in the last place off. The counterpart of `device_numbers.py`.
#pragma once

// Two bfloat16 numbers, to the nearest even, the first in the lower half.
__device__ inline unsigned bf16_pair(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(low), "f"(high));
    return pair;
}

// Four e4m3 codes of numbers in -448..448, to the nearest even, the first in the lowest byte.
__device__ inline unsigned e4m3_codes(float a, float b, float c, float d) {
    unsigned short low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(low) : "f"(a), "f"(b));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(high) : "f"(c), "f"(d));
    return low | (unsigned)high << 16;
}

// The biased exponent of 2^ceil(log2(max(amax, 1e-4) / 448)): that of `amax` less 8, and one more
// if its mantissa is above 1.75.
__device__ inline unsigned scale_exponent(float amax) {
    return ((__float_as_uint(fmaxf(amax, 1e-4f)) + 0x1fffffu) >> 23) - 8;
}

// The power of two that has a biased exponent.
__device__ inline float power_of_two(unsigned exponent) { return __uint_as_float(exponent << 23); }

// Exponents of e are exponents of 2 after a product with this.
constexpr float LOG2_E = 1.4426950408889634f;

// 2^x: one for 0, zero for -inf.
__device__ inline float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float exponential(float x) { return power(x * LOG2_E); }

__device__ inline float binary_logarithm(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float root(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float reciprocal_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
