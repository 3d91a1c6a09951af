// Eight numbers at a time between memory and registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "device/lanes.cuh"
#include "device/numbers.cuh"
#include "device/order.cuh"

constexpr int EIGHT = 8;

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

__device__ inline void store(__nv_bfloat16 *to, const float *x) {
    *reinterpret_cast<uint4 *>(to) = make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]),
                                                bf16_pair(x[4], x[5]), bf16_pair(x[6], x[7]));
}

// A number as bfloat16 holds it.
__device__ inline float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

__device__ inline unsigned e4m3_codes(const float *x, float factor) {
    return e4m3_codes(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
}

template <int COUNT>
__device__ inline float largest(const float *x) {
    float highest = 0.0f;
#pragma unroll
    for (int j = 0; j < COUNT; j++) highest = fmaxf(highest, fabsf(x[j]));
    return highest;
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
