// Records of eight-bit numbers, from rows to pages. Numbers of a row are in the registers of a warp,
// read once, 16 bytes at a time; what lanes must know of each other goes by shuffles. A lane asks for
// all that it needs of a row before it looks at any.
#pragma once

#include "device/copies.cuh"
#include "device/lanes.cuh"
#include "device/numbers.cuh"
#include "device/order.cuh"

// Threads of a block, and numbers that a lane has side by side.
constexpr int THREADS = 128, EACH = 8;
// So many blocks a multiprocessor is given at once: as many as registers allow.
constexpr int BLOCKS = 8;

// Where rows go: `page_rows` a page, data parts first, then the scale parts.
struct Pages {
    unsigned char *bytes;
    const long long *slots;
    long long page_bytes;
    int rows, page_rows, data_bytes, scale_bytes;
};

// Where the parts of one row go.
struct Place {
    unsigned char *data, *scale;

    __device__ Place(const Pages &pages, long long slot) {
        const bool small = slot < 1ll << 31;
        const long long page = small ? (unsigned)slot / (unsigned)pages.page_rows
                                     : slot / pages.page_rows;
        const int line = (int)(slot - page * pages.page_rows);
        unsigned char *const begin = pages.bytes + page * pages.page_bytes;
        data = begin + line * pages.data_bytes;
        scale = begin + pages.page_rows * pages.data_bytes + line * pages.scale_bytes;
    }
};

// Eight numbers side by side as they lie in memory, to be asked for early and looked at late. Not read
// as constants: the kernel before may still be writing them when this one is launched.
struct Eight {
    uint4 pairs;

    __device__ void load(const __nv_bfloat16 *from) {
        pairs = *reinterpret_cast<const uint4 *>(from);
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

// The biased exponent of 2^ceil(log2(max(amax, 1e-4) / 448)) of LANES lanes' numbers: that of the
// highest less 8, and one more if its mantissa is above 1.75.
template <int LANES, int COUNT>
__device__ inline unsigned scale_exponent(const float *x) {
    float highest = 1e-4f;
#pragma unroll
    for (int j = 0; j < COUNT; j++) highest = fmaxf(highest, fabsf(x[j]));
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, step));
    }
    return ((__float_as_uint(highest) + 0x1fffffu) >> 23) - 8;
}

// A record: 448 codes and 64 bfloat16 numbers, the rotated ones; 7 scales and a zero. A warp has a
// row, a lane 8 numbers of its first half and 8 of its second; eight lanes have a scale. In the second
// half the last eight lanes have the numbers that are no codes.
constexpr int CHANNELS = 512, TURNED = 64, HALF = CHANNELS / 2, LANES = 64 / EACH;
constexpr int PLAIN_LANES = 32 - TURNED / EACH;

// What is asked for of a row: its numbers, where it goes, and four numbers of its rotation, of which
// the first 16 lanes have the cosines and the others the sines.
struct Row {
    Eight low, high;
    float4 turn;
    long long slot;

    __device__ void load(const Pages &pages, const __nv_bfloat16 *numbers, const float *rotation) {
        slot = *pages.slots;
        low.load(numbers);
        high.load(numbers + HALF);
        turn = *reinterpret_cast<const float4 *>(rotation);
    }
};

// Rotate eight numbers of the lanes that have turning ones; all lanes take part. Of two cosines or
// sines of a pair, which are alike, one is used.
__device__ inline void rotate(float *x, const float4 &turn) {
    const int lane = threadIdx.x % 32, from = lane % 8 * 2;
    const float first = lane < 16 ? turn.x : turn.y, second = lane < 16 ? turn.z : turn.w;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float mine = i % 2 ? second : first;
        const float cosine = __shfl_sync(ALL, mine, from + i / 2);
        const float sine = __shfl_sync(ALL, mine, from + i / 2 + 16);
        const float even = x[2 * i], odd = x[2 * i + 1];
        if (lane < PLAIN_LANES) continue;
        x[2 * i] = even * cosine - odd * sine;
        x[2 * i + 1] = odd * cosine + even * sine;
    }
}

__device__ inline uint2 eight_codes(const float *x, unsigned exponent) {
    const float factor = power_of_two(254 - exponent);
    return make_uint2(
        e4m3_codes(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor),
        e4m3_codes(x[4] * factor, x[5] * factor, x[6] * factor, x[7] * factor));
}

// The norm's gains, by fours of a lane's numbers: lanes side by side.
struct Gains {
    float4 fours[2 * EACH / 4][32];

    __device__ void load(const float *weight) {
        constexpr int ALL_FOURS = 2 * EACH / 4 * 32;
#pragma unroll
        for (int begin = 0; begin < ALL_FOURS; begin += THREADS) {
            const int i = begin + threadIdx.x, four = i / 32, lane = i % 32;
            if (i >= ALL_FOURS) break;
            const float *const from = weight + four / 2 * HALF + lane * EACH + four % 2 * 4;
            fours[four][lane] = *reinterpret_cast<const float4 *>(from);
        }
    }
};

__device__ inline void store_record(const Pages &pages, const Row &row, const Gains &gains,
                                    float eps) {
    const int lane = threadIdx.x % 32;
    const Place place(pages, row.slot);
    float x[2 * EACH];
    row.low.widen(x);
    row.high.widen(x + EACH);
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < 2 * EACH; j++) squares += x[j] * x[j];
    const float factor = reciprocal_root(sum_of_lanes<32>(squares) * (1.0f / CHANNELS) + eps);
#pragma unroll
    for (int i = 0; i < 2 * EACH / 4; i++) {
        const float4 gain = gains.fours[i][lane];
        x[4 * i] = x[4 * i] * factor * gain.x;
        x[4 * i + 1] = x[4 * i + 1] * factor * gain.y;
        x[4 * i + 2] = x[4 * i + 2] * factor * gain.z;
        x[4 * i + 3] = x[4 * i + 3] * factor * gain.w;
    }
    rotate(x + EACH, row.turn);
    const unsigned first = scale_exponent<LANES, EACH>(x);
    const unsigned second = scale_exponent<LANES, EACH>(x + EACH);
    *reinterpret_cast<uint2 *>(place.data + lane * EACH) = eight_codes(x, first);
    if (lane < PLAIN_LANES) {
        *reinterpret_cast<uint2 *>(place.data + HALF + lane * EACH) = eight_codes(x + EACH, second);
    } else {
        uint4 pairs;
        pairs.x = bf16_pair(x[8], x[9]), pairs.y = bf16_pair(x[10], x[11]);
        pairs.z = bf16_pair(x[12], x[13]), pairs.w = bf16_pair(x[14], x[15]);
        reinterpret_cast<uint4 *>(place.data + CHANNELS - TURNED)[lane - PLAIN_LANES] = pairs;
    }
    // Lane i of the first eight takes the i-th scale; the eighth byte is a zero.
    const unsigned low_scale = __shfl_sync(ALL, first, lane % 4 * LANES);
    const unsigned high_scale = __shfl_sync(ALL, second, lane % 4 * LANES);
    const unsigned mine = lane < 4 ? low_scale : high_scale;
    if (lane < 8) place.scale[lane] = lane < 7 ? mine : 0;
}

// Ask the L2 cache for a row and its rotation, a line each lane.
__device__ inline void bring_row(const __nv_bfloat16 *numbers, const float *rotation) {
    constexpr int LINE = 128, LINES = CHANNELS * sizeof(__nv_bfloat16) / LINE;
    const int lane = threadIdx.x % 32, turns = lane - LINES;
    const char *const line = reinterpret_cast<const char *>(numbers) + lane * LINE;
    const char *const turn = reinterpret_cast<const char *>(rotation) + turns * LINE;
    if (turns < 2 * TURNED * (int)sizeof(float) / LINE) bring_line(turns < 0 ? line : turn);
}

// A warp takes every so many-th row, and asks for the next one before it stores one. The next launch
// may begin when warps have one row left: with many rows its blocks would be in their way.
__global__ void __launch_bounds__(THREADS, BLOCKS)
    store_records(Pages pages, const __nv_bfloat16 *rows, long long stride, const float *weight,
                  const float *rotation, float eps) {
    const int lane = threadIdx.x % 32, warps = gridDim.x * (THREADS / 32);
    int left = pages.rows - (int)(blockIdx.x * (THREADS / 32) + threadIdx.x / 32);
    const long long begin = pages.rows - left;
    pages.slots += begin;
    rows += begin * stride;
    rotation += begin * (2 * TURNED);
    __shared__ Gains gains;
    if (left > 0) bring_row(rows, rotation);
    rows += lane * EACH;
    rotation += lane * 4;
    await_launch_before();
    let_next_begin_if(left <= warps);
    Row row, next;
    if (left > 0) row.load(pages, rows, rotation);
    gains.load(weight);
    __syncthreads();
    if (left <= 0) return;
    while (true) {
        left -= warps;
        pages.slots += warps;
        rows += warps * stride;
        rotation += (long long)warps * (2 * TURNED);
        if (left > 0) next.load(pages, rows, rotation);
        if (left <= warps) let_next_begin();
        if (row.slot >= 0) store_record(pages, row, gains, eps);
        if (left <= 0) return;
        row = next;
    }
}
