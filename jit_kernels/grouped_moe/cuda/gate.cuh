// Rows gated and rounded. A thread has eight channels of a few neighbouring rows, all of which it asks
// for before it looks at any: so much must be under way to keep memory busy.
#pragma once

#include <cuda_bf16.h>

#include "device/lanes.cuh"
#include "device/numbers.cuh"
#include "device/order.cuh"

constexpr int ROWS = 4, EACH = 8, LANES = 128 / EACH, MOST_THREADS = 256;

// Scales lie in two regions of `head` and of `rows - head` rows, column by column in each; `head` is a
// multiple of ROWS.
struct Call {
    const __nv_bfloat16 *products;
    const int *member;
    unsigned char *codes;
    float *scales;
    int rows, head, inner;
    float limit;

    __device__ float *scale(int row, int group) const {
        const long long groups = inner / 128, tail = rows - head;
        return row < head ? scales + (long long)group * head + row
                          : scales + groups * head + group * tail + (row - head);
    }
};

// x / (1 + e^-x), a few units in the last place off.
__device__ inline float silu(float x) { return x * reciprocal(1.0f + power(x * -LOG2_E)); }

// Gate eight channels and return the largest of them, without sign.
__device__ inline float gated(float (&x)[EACH], const uint4 &gates, const uint4 &ups, float limit) {
    const unsigned gate_pairs[4] = {gates.x, gates.y, gates.z, gates.w};
    const unsigned up_pairs[4] = {ups.x, ups.y, ups.z, ups.w};
    float highest = 0.0f;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const unsigned gate_bits = gate_pairs[j / 2], up_bits = up_pairs[j / 2];
        const float gate = __uint_as_float(j % 2 ? gate_bits & 0xffff0000u : gate_bits << 16);
        const float up = __uint_as_float(j % 2 ? up_bits & 0xffff0000u : up_bits << 16);
        x[j] = silu(fminf(gate, limit)) * fminf(fmaxf(up, -limit), limit);
        highest = fmaxf(highest, fabsf(x[j]));
    }
    return highest;
}

__global__ void __launch_bounds__(MOST_THREADS, 3) gate_rows(const __grid_constant__ Call call) {
    await_launch_before();
    const int first_row = blockIdx.x * ROWS;
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * EACH;
    const int4 members = *reinterpret_cast<const int4 *>(call.member + first_row);
    const bool wanted[ROWS] = {members.x >= 0, members.y >= 0, members.z >= 0, members.w >= 0};
    if (!(wanted[0] | wanted[1] | wanted[2] | wanted[3])) return;
    // Threads past the last channel stay: lanes hear each other.
    const bool inside = column < call.inner;
    const __nv_bfloat16 *const from = call.products + first_row * (2ll * call.inner) + column;
    uint4 gates[ROWS], ups[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        gates[r] = ups[r] = make_uint4(0, 0, 0, 0);
        if (inside && wanted[r]) {
            gates[r] = __ldcs(reinterpret_cast<const uint4 *>(from + r * (2ll * call.inner)));
            ups[r] = __ldcs(
                reinterpret_cast<const uint4 *>(from + r * (2ll * call.inner) + call.inner));
        }
    }
    float scales[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float x[EACH];
        float highest = fmaxf(gated(x, gates[r], ups[r], call.limit), 1e-4f);
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) {
            highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, step));
        }
        // Of 2^ceil(log2(highest / 448)): that of the highest less 8, and one more if its mantissa
        // is above 1.75.
        const unsigned exponent = ((__float_as_uint(highest) + 0x1fffffu) >> 23) - 8;
        const float factor = __uint_as_float((254 - exponent) << 23);
        scales[r] = __uint_as_float(exponent << 23);
        if (inside && wanted[r]) {
            uint2 codes;
            codes.x = e4m3_codes(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
            codes.y = e4m3_codes(x[4] * factor, x[5] * factor, x[6] * factor, x[7] * factor);
            *reinterpret_cast<uint2 *>(call.codes + (first_row + r) * (long long)call.inner +
                                       column) = codes;
        }
    }
    // Rows that nobody wants get a scale too: it lies between those of others.
    if (inside && threadIdx.x % LANES == 0) {
        *reinterpret_cast<float4 *>(call.scale(first_row, column / 128)) =
            make_float4(scales[0], scales[1], scales[2], scales[3]);
    }
}
