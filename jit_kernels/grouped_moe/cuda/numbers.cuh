// What the kernel asks of the device beyond C++.
#pragma once

// Four e4m3 codes of numbers in -448..448, to the nearest even, the first in the lowest byte.
__device__ inline unsigned e4m3_codes(float a, float b, float c, float d) {
    unsigned short low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(low) : "f"(a), "f"(b));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(high) : "f"(c), "f"(d));
    return low | (unsigned)high << 16;
}

// x / (1 + e^-x), a few units in the last place off.
__device__ inline float silu(float x) {
    float power, share;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.0f + power));
    return x * share;
}
