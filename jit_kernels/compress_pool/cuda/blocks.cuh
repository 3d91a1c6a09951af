// What becomes of a block's mean: norm, rotation, codes, their place in a page. Sixteen lanes have
// 64 channels, four each, in the order of the channels. Roundings are spelled out, so that a block
// has the same bits in every kernel that makes it.
#pragma once

#include "numbers.cuh"

constexpr int MAIN = 512, INDEX = 128, TURNED = 64;
constexpr int GROUP = 64, GROUPS = MAIN / GROUP, GROUP_LANES = 16;

// Where a block is stored.
struct Place {
    unsigned char *data, *scale;
};

// Pages of rows: `page_rows` a page, data parts first, then the scale parts.
struct Pages {
    unsigned char *bytes;
    const float *weight;
    long long page_bytes;
    int page_rows, data_bytes, scale_bytes;

    // A division that takes its time: ask before the numbers to be stored are there.
    __device__ Place place(long long slot) const {
        const bool small = slot < 1ll << 31;
        const long long page = small ? (unsigned)slot / (unsigned)page_rows : slot / page_rows;
        const int line = (int)(slot - page * page_rows);
        unsigned char *const first = bytes + page * page_bytes;
        return {first + line * data_bytes, first + page_rows * data_bytes + line * scale_bytes};
    }
};

// Blocks that a step finishes.
struct Ended {
    const long long *slots;
    const float *rotation;

    __device__ const float *turn(long long nth) const { return rotation + nth * (2 * TURNED); }
};

template <int LANES>
__device__ inline float squares_of_lanes(float4 x) {
    const float low = fmaf(x.x, x.x, __fmul_rn(x.y, x.y));
    float sum = __fadd_rn(low, fmaf(x.z, x.z, __fmul_rn(x.w, x.w)));
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, step));
    }
    return sum;
}

__device__ inline float squares_of_group(float4 x) { return squares_of_lanes<GROUP_LANES>(x); }

// Sum over the groups of a record, always in their order.
__device__ inline float squares_of_record(const float *groups) {
    float sum = groups[0];
#pragma unroll
    for (int i = 1; i < GROUPS; i++) sum = __fadd_rn(sum, groups[i]);
    return sum;
}

template <int CHANNELS>
__device__ inline float4 normed(float4 x, float squares, float4 gain, float eps) {
    const float factor = reciprocal_root(fmaf(squares, 1.0f / CHANNELS, eps));
    return make_float4(__fmul_rn(__fmul_rn(x.x, factor), gain.x),
                       __fmul_rn(__fmul_rn(x.y, factor), gain.y),
                       __fmul_rn(__fmul_rn(x.z, factor), gain.z),
                       __fmul_rn(__fmul_rn(x.w, factor), gain.w));
}

// The turn of a lane's two pairs, those of its four channels among the TURNED last ones.
struct Turn {
    float4 cosine, sine;

    __device__ void load(const float *turn, int lane) {
        cosine = four(turn + 4 * lane);
        sine = four(turn + TURNED + 4 * lane);
    }
    __device__ float4 apply(float4 x) const {
        return make_float4(__fsub_rn(__fmul_rn(x.x, cosine.x), __fmul_rn(x.y, sine.y)),
                           __fadd_rn(__fmul_rn(x.y, cosine.x), __fmul_rn(x.x, sine.y)),
                           __fsub_rn(__fmul_rn(x.z, cosine.z), __fmul_rn(x.w, sine.w)),
                           __fadd_rn(__fmul_rn(x.w, cosine.z), __fmul_rn(x.z, sine.w)));
    }
};

// Store a group of a record: codes and their scale, or bfloat16, turned, if it is the last one. All
// lanes of a warp take part.
__device__ inline void store_group(const Place &place, int group, int lane, float4 x,
                                   const Turn &turn) {
    unsigned char *const data = place.data, *const scale = place.scale + group;
    const unsigned exponent = scale_exponent(largest_of_lanes<GROUP_LANES>(x));
    if (group == GROUPS - 1) {
        x = turn.apply(x);
        *reinterpret_cast<uint2 *>(data + MAIN - TURNED + 8 * lane) =
            make_uint2(bf16_pair(x.x, x.y), bf16_pair(x.z, x.w));
        if (lane == 0) *scale = 0;
        return;
    }
    reinterpret_cast<unsigned *>(data)[group * GROUP_LANES + lane] =
        e4m3_codes(x, power_of_two(254 - exponent));
    if (lane == 0) *scale = (unsigned char)exponent;
}

// Norm, rotate and transform a key, which a warp has, and store it.
__device__ inline void store_key(const Place &place, float4 x, float4 gain, const Turn &turn,
                                 float eps) {
    const int lane = threadIdx.x % 32;
    float squares = squares_of_group(x);
    squares = __fadd_rn(squares, __shfl_xor_sync(ALL, squares, GROUP_LANES));
    x = normed<INDEX>(x, squares, gain, eps);
    if (lane >= GROUP_LANES) x = turn.apply(x);
    const float4 pairs = make_float4(x.x + x.y, x.x - x.y, x.z + x.w, x.z - x.w);
    x = make_float4(pairs.x + pairs.z, pairs.y + pairs.w, pairs.x - pairs.z, pairs.y - pairs.w);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float sign = lane & step ? -1.0f : 1.0f;
        x.x = fmaf(x.x, sign, __shfl_xor_sync(ALL, x.x, step));
        x.y = fmaf(x.y, sign, __shfl_xor_sync(ALL, x.y, step));
        x.z = fmaf(x.z, sign, __shfl_xor_sync(ALL, x.z, step));
        x.w = fmaf(x.w, sign, __shfl_xor_sync(ALL, x.w, step));
    }
    constexpr float NORM = 0.08838834764831845f;
    x = make_float4(x.x * NORM, x.y * NORM, x.z * NORM, x.w * NORM);
    const unsigned exponent = scale_exponent(largest_of_lanes<32>(x));
    reinterpret_cast<unsigned *>(place.data)[lane] = e4m3_codes(x, power_of_two(254 - exponent));
    if (lane == 0) *reinterpret_cast<float *>(place.scale) = power_of_two(exponent);
}
