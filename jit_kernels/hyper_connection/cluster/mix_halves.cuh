// Mixes streams that are too wide for a cluster, when the sums of both halves are known: a block
// one token, and blocks before these many matrices, a thread one.
#pragma once

#include "gate.cuh"
#include "mix.cuh"

// Each thread of a block mixes eight channels, and eight more so many channels on.
constexpr int FINISHERS = 512, CHUNKS = 2, MOST_CHANNELS = FINISHERS * CHUNKS * 8;

// The sum of a line over all channels of a token.
__device__ inline float sum_of(const Call &call, int place, int line) {
    const float *const sums = call.sums + (long long)place * 2 * TOLD + line;
    return sums[0] + sums[TOLD];
}

__device__ inline void balance_token(const Call &call, int place) {
    if (place >= call.tokens) return;
    const float squares = sum_of(call, place, LINES);
    const float factor = reciprocal_root(squares * call.per_number + call.norm_eps);
    const float gain = __ldg(call.scale + 2);
    float a[STREAMS][STREAMS];
    for (int i = 0; i < STREAMS * STREAMS; i++) {
        const int line = 2 * STREAMS + i;
        const float z = sum_of(call, place, line) * factor * gain + __ldg(call.base + line);
        a[i / STREAMS][i % STREAMS] = z;
    }
    balance(call, a, place);
}

// Add up a number of each thread of the block.
__device__ inline float sum_of_block(float x, float *memory) {
    for (int step = 1; step < 32; step *= 2) x += __shfl_xor_sync(ALL, x, step);
    if (threadIdx.x % 32 == 0) memory[threadIdx.x / 32] = x;
    __syncthreads();
    x = memory[threadIdx.x % (FINISHERS / 32)];
    for (int step = 1; step < FINISHERS / 32; step *= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
}

template <bool NORM>
__device__ inline void finish_token(const Call &call, int place, float *memory) {
    const int lane = threadIdx.x % 32;
    uint4 x[CHUNKS][STREAMS] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int channel = (c * FINISHERS + threadIdx.x) * 8;
        const __nv_bfloat16 *const from = call.streams + place * call.token_stride + channel;
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++) {
            if (channel >= call.width) continue;
            x[c][stream] =
                *reinterpret_cast<const uint4 *>(from + stream * call.stream_stride);
        }
    }
    const float z = Line<false>(call).logit(call, sum_of(call, place, min(lane, LINES)));
    const float gate = sigmoid(z);
    const float4 gates = gates_of(gate + call.hc_eps);
    if (threadIdx.x < 32 && lane / STREAMS == 1) {
        call.post[(long long)place * STREAMS + lane - STREAMS] = 2.0f * gate;
    }
    uint4 mixed[CHUNKS];
    float squares = 0.0f, factor = 1.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        mixed[c] = mix_channels(x[c], gates);
        squares += squares_of(mixed[c]);
    }
    if constexpr (NORM) {
        factor = reciprocal_root(sum_of_block(squares, memory) * call.per_channel + call.norm_eps);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int channel = (c * FINISHERS + threadIdx.x) * 8;
        if (channel >= call.width) continue;
        if constexpr (NORM) {
            float gain[8];
            for (int j = 0; j < 8; j++) gain[j] = __ldg(call.weight + channel + j);
            mixed[c] = norm_channels(mixed[c], factor, gain);
        }
        __nv_bfloat16 *const to = call.mixed + (long long)place * call.width + channel;
        *reinterpret_cast<uint4 *>(to) = mixed[c];
    }
}
