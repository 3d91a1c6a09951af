// Norms of wide rows: a block keeps its part of the weight in registers and goes through rows, the
// next of which is on its way while one is worked on.
#pragma once

#include "numbers.cuh"

constexpr int MAX_NORM_THREADS = 512;

// Where rows go: numbers, or codes and scales of 128 channels, column by column.
struct Normed {
    void *out;
    float *scales;
    long long scale_stride;
};

__device__ inline void write(const Normed &to, __nv_bfloat16 *, long long at, long long, int,
                             const float *x) {
    store(static_cast<__nv_bfloat16 *>(to.out) + at, x);
}

struct Codes {};

__device__ inline void write(const Normed &to, Codes *, long long at, long long row, int channel,
                             const float *x) {
    const unsigned exponent = scale_exponent(largest_of_lanes<16>(largest<EIGHT>(x)));
    const float factor = power_of_two(254 - exponent);
    *reinterpret_cast<uint2 *>(static_cast<unsigned char *>(to.out) + at) =
        make_uint2(e4m3_codes(x, factor), e4m3_codes(x + 4, factor));
    if (threadIdx.x % 16) return;
    to.scales[channel / 128 * to.scale_stride + row] = power_of_two(exponent);
}

// Sixteen channels a thread, in two parts; all lanes of a warp have channels.
template <class Result>
__global__ void __launch_bounds__(MAX_NORM_THREADS)
    norm_rows(const __nv_bfloat16 *x_from, long long stride, const float *weight, Normed to, int rows,
              int width, float per_channel, float eps) {
    __shared__ float parts[2][MAX_NORM_THREADS / 32];
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const int low = threadIdx.x * EIGHT, high = low + width / 2;
    float gain[2 * EIGHT];
    take_turn();
#pragma unroll
    for (int j = 0; j < 2 * EIGHT; j++) gain[j] = 1.0f;
    if (weight) {
        Eight<float> read;
        read.load(weight + low);
        read.widen(gain);
        read.load(weight + high);
        read.widen(gain + EIGHT);
    }
    Eight<__nv_bfloat16> read[2];
    int row = blockIdx.x;
    read[0].load(x_from + row * stride + low);
    read[1].load(x_from + row * stride + high);
    for (int turn = 0; row < rows; row += gridDim.x, turn ^= 1) {
        float x[2 * EIGHT], squares = 0.0f;
        read[0].widen(x);
        read[1].widen(x + EIGHT);
        const int next = row + gridDim.x;
        if (next < rows) {
            read[0].load(x_from + next * stride + low);
            read[1].load(x_from + next * stride + high);
        }
#pragma unroll
        for (int j = 0; j < 2 * EIGHT; j++) squares += x[j] * x[j];
        squares = sum_of_lanes<32>(squares);
        // The parts of the row before last are not read any more.
        if (lane == 0) parts[turn][threadIdx.x / 32] = squares;
        __syncthreads();
        squares = sum_of_lanes<16>(lane % 16 < warps ? parts[turn][lane % 16] : 0.0f);
        const float factor = rsqrtf(squares * per_channel + eps);
#pragma unroll
        for (int j = 0; j < 2 * EIGHT; j++) x[j] *= factor * gain[j];
        Result *const kind = nullptr;
        write(to, kind, (long long)row * width + low, row, low, x);
        write(to, kind, (long long)row * width + high, row, high, x + EIGHT);
    }
}
