// Indexer queries of 128 channels, the last 64 of which turn: turned, transformed, rounded. Four
// lanes have a head; of its channels' numbers, bits 3 and 4 are the lane, the rest are in registers.
#pragma once

#include "numbers.cuh"

constexpr int KEY = 128, KEY_TURNED = 64, KEY_EIGHTS = 4, KEY_WARPS = 8;

template <class Number>
__device__ inline float widened(Number x);
template <>
__device__ inline float widened(float x) { return x; }
template <>
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

// One level of the transform over register bit HALF.
template <int HALF>
__device__ inline void transform_level(float (&x)[KEY_EIGHTS * EIGHT]) {
#pragma unroll
    for (int j = 0; j < KEY_EIGHTS * EIGHT; j++) {
        if (j & HALF) continue;
        const float low = x[j], high = x[j + HALF];
        x[j] = low + high;
        x[j + HALF] = low - high;
    }
}

// PADDED  heads written, a multiple of eight; those past `heads` are zero
template <class Number, class Weight>
__global__ void __launch_bounds__(KEY_WARPS * 32)
    make_queries(const Number *q, long long stride, const Weight *weights, long long weight_stride,
                 const float *rotation, unsigned char *codes, float *folded, int tokens, int heads,
                 int padded, float scale) {
    const int lane = threadIdx.x % 32, shares = padded / 8;
    const int share = blockIdx.x * KEY_WARPS + threadIdx.x / 32;
    const int token = share / shares, head = share % shares * 8 + lane / 4, quarter = lane % 4;
    take_turn();
    // All lanes of a warp have the same token.
    if (token >= tokens) return;
    const bool real = head < heads;
    float x[KEY_EIGHTS * EIGHT] = {};
    if (real) {
        const Number *const from = q + token * stride + head * KEY + quarter * EIGHT;
        Eight<Number> read[KEY_EIGHTS];
#pragma unroll
        for (int i = 0; i < KEY_EIGHTS; i++) read[i].load(from + i * 4 * EIGHT);
#pragma unroll
        for (int i = 0; i < KEY_EIGHTS; i++) read[i].widen(x + i * EIGHT);
    }
    const float weight = real ? widened(weights[token * weight_stride + head]) : 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        Turn turn;
        turn.load(rotation + token * 2ll * KEY_TURNED, KEY_TURNED, (i * 4 + quarter) * EIGHT, 1.0f);
        turn.apply(x + (2 + i) * EIGHT);
    }
    transform_level<1>(x);
    transform_level<2>(x);
    transform_level<4>(x);
    transform_level<8>(x);
    transform_level<16>(x);
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const float sign = lane & step ? -1.0f : 1.0f;
#pragma unroll
        for (int j = 0; j < KEY_EIGHTS * EIGHT; j++) {
            x[j] = fmaf(x[j], sign, __shfl_xor_sync(ALL, x[j], step));
        }
    }
    constexpr float NORM = 0.08838834764831845f;
#pragma unroll
    for (int j = 0; j < KEY_EIGHTS * EIGHT; j++) x[j] *= NORM;
    const float amax = largest_of_lanes<4>(largest<KEY_EIGHTS * EIGHT>(x));
    const unsigned exponent = scale_exponent(amax);
    const float factor = power_of_two(254 - exponent);
    const long long line = (long long)token * padded + head;
#pragma unroll
    for (int i = 0; i < KEY_EIGHTS; i++) {
        const float *const mine = x + i * EIGHT;
        *reinterpret_cast<uint2 *>(codes + line * KEY + (i * 4 + quarter) * EIGHT) =
            make_uint2(e4m3_codes(mine, factor), e4m3_codes(mine + 4, factor));
    }
    if (quarter == 0) folded[line] = weight * power_of_two(exponent) * scale;
}
