// Indexer queries of 128 channels, the last 64 of which turn: turned, transformed, rounded. Four
// lanes have a head, a warp eight heads at once; of its channels' numbers, bits 3 and 4 are the
// lane, the rest are in registers. A warp goes through heads side by side, the next ones on their
// way while eight are worked on, and keeps a token's turn for all of its heads.
#pragma once

#include "numbers.cuh"

constexpr int KEY = 128, KEY_TURNED = 64, LANE_CHANNELS = 32, HEADS_AT_ONCE = 8, QUERY_WARPS = 4;

// Heads of tokens; `padded`, a multiple of HEADS_AT_ONCE, are written, zeros past `heads`.
struct Queries {
    const void *q, *weights;
    long long stride, weight_stride;
    const float *rotation;
    unsigned char *codes;
    float *folded;
    int tokens, heads, padded;
    float scale;
};

// Blocks of threads that a multiprocessor has registers for.
template <class Number>
constexpr int QUERY_BLOCKS = sizeof(Number) == 2 ? 5 : 4;

// Eight numbers as they lie in memory.
template <class Number>
struct Eight;

template <>
struct Eight<__nv_bfloat16> {
    uint4 pairs;

    __device__ void load(const __nv_bfloat16 *from) {
        pairs = __ldcs(reinterpret_cast<const uint4 *>(from));
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
        low = __ldcs(reinterpret_cast<const float4 *>(from));
        high = __ldcs(reinterpret_cast<const float4 *>(from) + 1);
    }
    __device__ void widen(float *x) const {
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    }
};

__device__ inline float widened(float x) { return x; }
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

// One level of the transform over register bit HALF.
template <int HALF>
__device__ inline void transform_level(float (&x)[LANE_CHANNELS]) {
#pragma unroll
    for (int j = 0; j < LANE_CHANNELS; j++) {
        if (j & HALF) continue;
        const float low = x[j], high = x[j + HALF];
        x[j] = low + high;
        x[j + HALF] = low - high;
    }
}

// The cosines and sines of a lane's eight pairs.
struct QueryTurn {
    float cosine[8], sine[8];

    __device__ void load(const float *turn, int quarter) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *const at = turn + (i / 2 * 4 + quarter) * 8 + i % 2 * 4;
            const float4 cosines = __ldg(reinterpret_cast<const float4 *>(at));
            const float4 sines = __ldg(reinterpret_cast<const float4 *>(at + KEY_TURNED));
            cosine[2 * i] = cosines.x, cosine[2 * i + 1] = cosines.z;
            sine[2 * i] = sines.y, sine[2 * i + 1] = sines.w;
        }
    }
    // Of the later half of the lane's channels.
    __device__ void apply(float (&x)[LANE_CHANNELS]) const {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float &even = x[LANE_CHANNELS / 2 + 2 * i], &odd = x[LANE_CHANNELS / 2 + 2 * i + 1];
            const float first = fmaf(even, cosine[i], -__fmul_rn(odd, sine[i]));
            odd = fmaf(odd, cosine[i], __fmul_rn(even, sine[i]));
            even = first;
        }
    }
};

__device__ inline void transform(float (&x)[LANE_CHANNELS]) {
    transform_level<1>(x);
    transform_level<2>(x);
    transform_level<4>(x);
    transform_level<8>(x);
    transform_level<16>(x);
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const float sign = threadIdx.x & step ? -1.0f : 1.0f;
#pragma unroll
        for (int j = 0; j < LANE_CHANNELS; j++) {
            x[j] = fmaf(x[j], sign, __shfl_xor_sync(ALL, x[j], step));
        }
    }
}

// Write a lane's codes, and return the scale of the head.
__device__ inline float write_codes(const float (&x)[LANE_CHANNELS], unsigned char *to) {
    constexpr float NORM = 0.08838834764831845f;
    float highest = 0.0f;
#pragma unroll
    for (int j = 0; j < LANE_CHANNELS; j++) highest = fmaxf(highest, fabsf(x[j]));
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, step));
    }
    const unsigned exponent = scale_exponent(highest * NORM);
    // The factor is a power of two, so this rounds as a product with NORM does.
    const float factor = power_of_two(254 - exponent) * NORM;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 low = make_float4(x[8 * i], x[8 * i + 1], x[8 * i + 2], x[8 * i + 3]);
        const float4 high = make_float4(x[8 * i + 4], x[8 * i + 5], x[8 * i + 6], x[8 * i + 7]);
        __stcs(reinterpret_cast<uint2 *>(to + i * 32),
               make_uint2(e4m3_codes(low, factor), e4m3_codes(high, factor)));
    }
    return power_of_two(exponent);
}

template <class Number, class Weight>
__global__ void __launch_bounds__(QUERY_WARPS * 32, QUERY_BLOCKS<Number>)
    turn_queries(const Queries call) {
    const int lane = threadIdx.x % 32, quarter = lane % 4, shares = call.padded / HEADS_AT_ONCE;
    const int warps = gridDim.x * QUERY_WARPS, warp = blockIdx.x * QUERY_WARPS + threadIdx.x / 32;
    const long long all = (long long)call.tokens * shares, each = (all + warps - 1) / warps;
    const long long first = each * warp, end = min(first + each, all);
    take_turn();
    if (first >= end) return;
    int token = first / shares, head = first % shares * HEADS_AT_ONCE + lane / 4;
    Eight<Number> read[4];
    Weight weight;
    const auto ask = [&]() {
        if (head >= call.heads) {
#pragma unroll
            for (int i = 0; i < 4; i++) read[i] = {};
            weight = 0.0f;
            return;
        }
        const Number *const from = static_cast<const Number *>(call.q) + token * call.stride +
                                   head * KEY + quarter * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) read[i].load(from + i * 32);
        weight = static_cast<const Weight *>(call.weights)[token * call.weight_stride + head];
    };
    ask();
    QueryTurn turn;
    turn.load(call.rotation + token * (2ll * KEY_TURNED), quarter);
    for (long long share = first; share < end; share++) {
        const float mine = widened(weight);
        const int turned = token;
        const long long line = (long long)token * call.padded + head;
        float x[LANE_CHANNELS];
#pragma unroll
        for (int i = 0; i < 4; i++) read[i].widen(x + 8 * i);
        head += HEADS_AT_ONCE;
        if (head >= call.padded) head -= call.padded, token++;
        if (share + 1 < end) ask();
        turn.apply(x);
        if (token != turned && share + 1 < end) {
            turn.load(call.rotation + token * (2ll * KEY_TURNED), quarter);
        }
        transform(x);
        const float scale = write_codes(x, call.codes + line * KEY + quarter * 8);
        if (quarter == 0) call.folded[line] = mine * scale * call.scale;
    }
}
