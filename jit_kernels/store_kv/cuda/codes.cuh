// Bytes of numbers, as the device makes them.
#pragma once

// Four e4m3 codes of numbers in -448..448, to the nearest even, the first in the lowest byte.
__device__ inline unsigned e4m3_codes(float a, float b, float c, float d) {
    unsigned short low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(low) : "f"(a), "f"(b));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(high) : "f"(c), "f"(d));
    return low | (unsigned)high << 16;
}

// Two bfloat16 numbers, to the nearest even, the first in the lower half.
__device__ inline unsigned bf16_pair(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(low), "f"(high));
    return pair;
}

__device__ inline float reciprocal_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
