// Eight numbers at a time between memory and registers, and sums over some lanes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr unsigned ALL = 0xffffffffu;
constexpr int EIGHT = 8;

// Wait until the launches before have ended and what they wrote can be read; then let the launch
// after begin, which waits for the end of this one by itself.
__device__ inline void take_turn() {
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
}

// Read 16 bytes now: never before `take_turn`, as a load of what is said to be constant may be.
template <class Number>
__device__ inline Number read_now(const void *from) {
    static_assert(sizeof(Number) == 16);
    uint4 x;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return *reinterpret_cast<const Number *>(&x);
}

// What lies in memory as eight numbers: 16 bytes of bfloat16, 32 of float32.
template <class Number>
struct Eight;

template <>
struct Eight<__nv_bfloat16> {
    uint4 pairs;

    __device__ void load(const __nv_bfloat16 *from) {
        pairs = read_now<uint4>(from);
    }
    __device__ void widen(float *x) const {
        const unsigned words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = __uint_as_float(words[i] << 16);
            x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
};

template <>
struct Eight<float> {
    float4 low, high;

    __device__ void load(const float *from) {
        low = read_now<float4>(from);
        high = read_now<float4>(from + 4);
    }
    __device__ void widen(float *x) const {
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    }
};

__device__ inline unsigned bf16_pair(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(low), "f"(high));
    return pair;
}

__device__ inline void store(__nv_bfloat16 *to, const float *x) {
    *reinterpret_cast<uint4 *>(to) = make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]),
                                                bf16_pair(x[4], x[5]), bf16_pair(x[6], x[7]));
}

__device__ inline void store(float *to, const float *x) {
    reinterpret_cast<float4 *>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4 *>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

// A number as the type of the result holds it.
__device__ inline float rounded(float x, const __nv_bfloat16 *) {
    return __bfloat162float(__float2bfloat16_rn(x));
}
__device__ inline float rounded(float x, const float *) { return x; }

// Four e4m3 codes of numbers in -448..448, to the nearest even, the first in the lowest byte.
__device__ inline unsigned e4m3_codes(const float *x, float factor) {
    unsigned short low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;"
        : "=h"(low)
        : "f"(x[0] * factor), "f"(x[1] * factor));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;"
        : "=h"(high)
        : "f"(x[2] * factor), "f"(x[3] * factor));
    return low | (unsigned)high << 16;
}

// The biased exponent of 2^ceil(log2(max(amax, 1e-4) / 448)): that of `amax` less 8, and one more
// if its mantissa is above 1.75.
__device__ inline unsigned scale_exponent(float amax) {
    return ((__float_as_uint(fmaxf(amax, 1e-4f)) + 0x1fffffu) >> 23) - 8;
}

__device__ inline float power_of_two(unsigned exponent) { return __uint_as_float(exponent << 23); }

template <int COUNT>
__device__ inline float largest(const float *x) {
    float highest = 0.0f;
#pragma unroll
    for (int j = 0; j < COUNT; j++) highest = fmaxf(highest, fabsf(x[j]));
    return highest;
}

// Over LANES lanes side by side.
template <int LANES>
__device__ inline float largest_of_lanes(float x) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, step));
    return x;
}

template <int LANES>
__device__ inline float sum_of_lanes(float x) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
}

// The turn of four pairs: their cosines and sines.
struct Turn {
    float cosine[4], sine[4];

    // Of `channels` that turn, those from `first` on; backwards if `sign` is -1.
    __device__ void load(const float *rotation, int channels, int first, float sign) {
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const float *const at = rotation + first + 2 * j;
            const float4 cosines = read_now<float4>(at), sines = read_now<float4>(at + channels);
            cosine[j] = cosines.x, cosine[j + 1] = cosines.z;
            sine[j] = sines.y * sign, sine[j + 1] = sines.w * sign;
        }
    }
    // Products first, then one addition, as elsewhere.
    __device__ void apply(float *x) const {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float even = x[2 * j], odd = x[2 * j + 1];
            x[2 * j] = __fsub_rn(__fmul_rn(even, cosine[j]), __fmul_rn(odd, sine[j]));
            x[2 * j + 1] = __fadd_rn(__fmul_rn(odd, cosine[j]), __fmul_rn(even, sine[j]));
        }
    }
};
