// Records and keys of eight-bit numbers, from rows to pages. Numbers of a row are in the registers of
// a few lanes, read once, 16 bytes at a time; what lanes must know of each other goes by shuffles.
#pragma once

#include "codes.cuh"

constexpr unsigned ALL = 0xffffffffu;
constexpr int THREADS = 128;

// Where rows go: `page_rows` a page, data parts first, then the scale parts.
struct Pages {
    unsigned char *bytes;
    const long long *slots;
    long long page_bytes;
    int rows, page_rows, data_bytes, scale_bytes;

    __device__ unsigned char *data(long long slot) const {
        return bytes + page(slot) * page_bytes + line(slot) * data_bytes;
    }
    __device__ unsigned char *scale(long long slot) const {
        return bytes + page(slot) * page_bytes + page_rows * data_bytes + line(slot) * scale_bytes;
    }
    __device__ long long page(long long slot) const {
        const bool small = slot < 1ll << 31;
        return small ? (unsigned)slot / (unsigned)page_rows : slot / page_rows;
    }
    __device__ int line(long long slot) const { return (int)(slot - page(slot) * page_rows); }
};

// Load a lane's numbers, COUNT side by side.
template <int COUNT>
__device__ inline void load(float (&x)[COUNT], const float *from) {
#pragma unroll
    for (int j = 0; j < COUNT; j += 4) {
        const float4 four = __ldg(reinterpret_cast<const float4 *>(from + j));
        x[j] = four.x;
        x[j + 1] = four.y;
        x[j + 2] = four.z;
        x[j + 3] = four.w;
    }
}

template <int COUNT>
__device__ inline void load(float (&x)[COUNT], const __nv_bfloat16 *from) {
#pragma unroll
    for (int j = 0; j < COUNT; j += 8) {
        const uint4 eight = __ldg(reinterpret_cast<const uint4 *>(from + j));
        const unsigned pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[j + 2 * i] = __uint_as_float(pairs[i] << 16);
            x[j + 2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
        }
    }
}

// The biased exponent of 2^ceil(log2(max(amax, 1e-4) / 448)) of LANES lanes' numbers: that of the
// highest less 8, and one more if its mantissa is above 1.75.
template <int LANES, int COUNT>
__device__ inline unsigned scale_exponent(const float (&x)[COUNT]) {
    float highest = 1e-4f;
#pragma unroll
    for (int j = 0; j < COUNT; j++) highest = fmaxf(highest, fabsf(x[j]));
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, step));
    }
    return ((__float_as_uint(highest) + 0x1fffffu) >> 23) - 8;
}

__device__ inline float power_of_two(unsigned exponent) { return __uint_as_float(exponent << 23); }

// Rotate the even and odd numbers of a lane.
template <int COUNT>
__device__ inline void rotate(float (&x)[COUNT], const float *cosines, const float *sines) {
    float cosine[COUNT], sine[COUNT];
    load(cosine, cosines);
    load(sine, sines);
#pragma unroll
    for (int j = 0; j < COUNT; j += 2) {
        const float even = x[j], odd = x[j + 1];
        x[j] = even * cosine[j] - odd * sine[j + 1];
        x[j + 1] = odd * cosine[j] + even * sine[j + 1];
    }
}

// A record: 448 codes and 64 bfloat16 numbers, the rotated ones; 7 scales and a zero. A warp has a
// row, a lane 16 numbers: codes in lanes 0 to 27, four lanes a scale.
constexpr int CHANNELS = 512, TURNED = 64, EACH = CHANNELS / 32;
constexpr int PLAIN_LANES = (CHANNELS - TURNED) / EACH;

template <bool NORMED, class Number>
__global__ void __launch_bounds__(THREADS)
    store_records(Pages pages, const Number *rows, long long stride, const float *weight,
                  const float *rotation, float eps) {
    const int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= pages.rows) return;
    const long long slot = __ldg(pages.slots + row);
    float x[EACH];
    load(x, rows + row * stride + lane * EACH);
    if (slot < 0) return;
    if (NORMED) {
        float gain[EACH], squares = 0.0f;
        load(gain, weight + lane * EACH);
#pragma unroll
        for (int j = 0; j < EACH; j++) squares += x[j] * x[j];
#pragma unroll
        for (int step = 1; step < 32; step *= 2) squares += __shfl_xor_sync(ALL, squares, step);
        const float factor = reciprocal_root(squares * (1.0f / CHANNELS) + eps);
#pragma unroll
        for (int j = 0; j < EACH; j++) x[j] = x[j] * factor * gain[j];
        if (lane >= PLAIN_LANES) {
            const float *turn = rotation + row * 2ll * TURNED + (lane - PLAIN_LANES) * EACH;
            rotate(x, turn, turn + TURNED);
        }
    }
    const unsigned exponent = scale_exponent<4>(x);
    const float factor = power_of_two(254 - exponent);
    unsigned char *const data = pages.data(slot);
    if (lane < PLAIN_LANES) {
        unsigned codes[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            codes[j] = e4m3_codes(x[4 * j] * factor, x[4 * j + 1] * factor, x[4 * j + 2] * factor,
                                  x[4 * j + 3] * factor);
        }
        *reinterpret_cast<uint4 *>(data + lane * EACH) =
            make_uint4(codes[0], codes[1], codes[2], codes[3]);
    } else {
        unsigned pairs[8];
#pragma unroll
        for (int j = 0; j < 8; j++) pairs[j] = bf16_pair(x[2 * j], x[2 * j + 1]);
        uint4 *const to = reinterpret_cast<uint4 *>(data + CHANNELS - TURNED) +
                          (lane - PLAIN_LANES) * 2;
        to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
    }
    // Lane i of the first eight takes the i-th scale; the eighth byte is a zero.
    const unsigned mine = __shfl_sync(ALL, exponent, lane % 8 * 4);
    if (lane < 8) pages.scale(slot)[lane] = lane < 7 ? mine : 0;
}

// A key: 128 codes of the numbers' Hadamard transform, and their scale. Sixteen lanes have a row,
// eight numbers each.
constexpr int KEY_CHANNELS = 128, KEY_EACH = 8, KEY_LANES = KEY_CHANNELS / KEY_EACH;

template <class Number>
__global__ void __launch_bounds__(THREADS)
    store_keys(Pages pages, const Number *rows, long long stride, float norm) {
    const int thread = blockIdx.x * THREADS + threadIdx.x, lane = threadIdx.x % KEY_LANES;
    // All lanes of a warp stay to the end.
    const int row = min(thread / KEY_LANES, pages.rows - 1);
    const long long slot = __ldg(pages.slots + row);
    float x[KEY_EACH];
    load(x, rows + row * stride + lane * KEY_EACH);
#pragma unroll
    for (int half = 1; half < KEY_EACH; half *= 2) {
#pragma unroll
        for (int j = 0; j < KEY_EACH; j++) {
            if (j & half) continue;
            const float low = x[j], high = x[j + half];
            x[j] = low + high;
            x[j + half] = low - high;
        }
    }
#pragma unroll
    for (int step = 1; step < KEY_LANES; step *= 2) {
        const float sign = lane & step ? -1.0f : 1.0f;
#pragma unroll
        for (int j = 0; j < KEY_EACH; j++) {
            x[j] = fmaf(x[j], sign, __shfl_xor_sync(ALL, x[j], step));
        }
    }
#pragma unroll
    for (int j = 0; j < KEY_EACH; j++) x[j] *= norm;
    const unsigned exponent = scale_exponent<KEY_LANES>(x);
    if (slot < 0 || thread / KEY_LANES >= pages.rows) return;
    const float factor = power_of_two(254 - exponent);
    uint2 codes;
    codes.x = e4m3_codes(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
    codes.y = e4m3_codes(x[4] * factor, x[5] * factor, x[6] * factor, x[7] * factor);
    *reinterpret_cast<uint2 *>(pages.data(slot) + lane * KEY_EACH) = codes;
    if (lane == 0) *reinterpret_cast<float *>(pages.scale(slot)) = power_of_two(exponent);
}
