// What becomes of the sums of a row: one team writes the result; several leave theirs in memory, for
// the launch after to add up.
#pragma once

#include "attend.cuh"

// Sums of the channels of one rank by fours: two neighbours, of two heads eight apart. They are in
// order of such pairs of heads, whose quads are a unit, and then of channels.
constexpr int QUADS = HEADS * OWN * CHUNK / 4, PAIRS = HEADS / 2, UNIT_QUADS = QUADS / PAIRS;

// The sinks of a thread's two heads, which are asked for long before they are needed.
struct Sinks {
    float values[2];

    __device__ Sinks(const Call &call, int warp, int lane) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int head = warp % 4 * 16 + half * 8 + lane / 4;
            values[half] = head < call.heads ? read_float(call.sink + head) : minus_infinity();
        }
    }

    __device__ float of(int half) const { return values[half] * LOG2_E; }
};

// A part of a whole, which is 0 or at least 1.
__device__ inline float share_of(float part, float whole) {
    return whole == 0.0f ? 0.0f : __fdividef(part, whole);
}

__device__ inline void write_pair(const Call &call, long long nth, int head, int channel, float low,
                                  float high) {
    const long long at = (nth * call.heads + head) * WIDTH + channel;
    *reinterpret_cast<unsigned *>(call.out + at) = pair_of(low, high);
}

__device__ inline void write_alone(const Call &call, const Row &row, const Sums &sums,
                                   const Sinks &sinks, int rank, int warp, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int head = warp % 4 * 16 + half * 8 + lane / 4;
        const float sink = sinks.of(half);
        const float base = base_of(fmaxf(sums.greatest[half], sink));
        const float factor = power(sums.greatest[half] - base);
        const float whole = sums.total[half] * factor + power(sink - base);
        const float share = share_of(factor, whole);
        if (head >= call.heads) continue;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int channel = (rank * OWN + warp / 4) * CHUNK + j * 8 + lane % 4 * 2;
            write_pair(call, row.nth, head, channel, sums.values[j * 4 + half * 2] * share,
                       sums.values[j * 4 + half * 2 + 1] * share);
        }
    }
}

// Leave the mean of what this team attends, and the logarithm of its sum of weights.
__device__ inline void leave(const Call &call, const Row &row, const Sums &sums, int team, int rank,
                             int warp, int lane) {
    const long long nth = row.nth * call.teams + team;
    float share[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float total = sums.total[half];
        share[half] = share_of(1.0f, total);
        const int head = warp * 16 + half * 8 + lane / 4;
        if (rank || warp >= 4 || lane % 4) continue;
        call.sums[(row.nth * HEADS + head) * call.teams + team] =
            base_of(sums.greatest[half]) + binary_logarithm(total);
    }
    constexpr int CHUNK_QUADS = UNIT_QUADS / OWN, LINE_QUADS = 4;
    const int pair = warp % 4 * 8 + lane / 4;
    float4 *const to = call.partials + (nth * TEAM + rank) * QUADS + pair * UNIT_QUADS +
                       warp / 4 * CHUNK_QUADS + lane % 4;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float *const mine = sums.values + j * 4;
        to[j * LINE_QUADS] = make_float4(mine[0] * share[0], mine[1] * share[0],
                                         mine[2] * share[1], mine[3] * share[1]);
    }
}
