// Adds up what the teams of a row have left, in the order of teams. A block takes a unit: two heads,
// eight apart, and the channels of one rank, a quad a thread.
//
// It asks for no more shared memory than a unit of each team takes, 32 KB at most: what a
// multiprocessor keeps for that is taken from the L1 cache, and what begins beside it, products whose
// weights pass through that cache, would find no more than this kernel leaves.
#pragma once

#include "results.cuh"

constexpr int UNIT_THREADS = UNIT_QUADS, UNITS = PAIRS * TEAM;
static_assert(UNIT_THREADS == OWN * 32, "a warp has a chunk of the channels");
static_assert(OWN == 2, "a warp weighs the teams of one of the two heads");
static_assert(MOST_TEAMS <= 32, "a lane weighs a team");

// A thread's place in a unit: the head of the first two of its four numbers, and their channel.
struct Unit {
    int rank, pair, chunk, line, quarter;

    __device__ Unit()
        : rank(blockIdx.x % TEAM), pair(blockIdx.x / TEAM), chunk(threadIdx.x / 32),
          line(threadIdx.x % 32 / 4), quarter(threadIdx.x % 4) {}

    __device__ int head() const { return pair / 8 * 16 + pair % 8; }
    __device__ int channel() const { return (rank * OWN + chunk) * CHUNK + line * 8 + quarter * 2; }
};

__device__ inline void write_unit(const Call &call, const Row &row, const Unit &unit,
                                  const float (&x)[2][2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int head = unit.head() + half * 8;
        if (head < call.heads) {
            write_pair(call, row.nth, head, unit.channel(), x[half][0], x[half][1]);
        }
    }
}

// Ask for what a team of a row has left as its sum: a lane's team, of one head.
__device__ inline float sum_of_team(const Call &call, const Row &row, int head) {
    const int team = threadIdx.x % 32;
    if (team >= row.teams) return minus_infinity();
    return read_float(call.sums + (row.nth * HEADS + head) * call.teams + team);
}

// Ask for what this thread adds up, a quad of each team.
__device__ inline void ask_teams(const Call &call, const Row &row, const Unit &unit, float4 *quads) {
    const long long first = row.nth * call.teams * TEAM + unit.rank;
    const float4 *const from =
        call.partials + first * QUADS + unit.pair * UNIT_QUADS + threadIdx.x;
#pragma unroll 4
    for (int team = 0; team < row.teams; team++) {
        copy_ahead(quads + team * UNIT_QUADS + threadIdx.x, from + team * (TEAM * QUADS));
    }
}

// What a lane's team counts for, by its sum; the sink has a share as well.
__device__ inline float share_of_team(float sum, float sink) {
    const float base = base_of(largest_of_lanes<32>(fmaxf(sum, sink)));
    const float weight = power(sum - base);
    return weight * share_of(1.0f, sum_of_lanes<32>(weight) + power(sink - base));
}

// Shared memory has a unit of each team. Lengths and sinks are read before the teams end, who
// write none of them.
__global__ void __launch_bounds__(UNIT_THREADS) add_up(const __grid_constant__ Call call) {
    extern __shared__ __align__(16) float4 quads[];
    __shared__ float shares[2][MOST_TEAMS];
    const Unit unit;
    if (unit.head() >= call.heads) return;
    const int weighed = unit.head() + unit.chunk * 8, lane = threadIdx.x % 32;
    const bool weighs = weighed < call.heads;
    Row row(call, blockIdx.y);
    const float sink = weighs ? read_float(call.sink + weighed) : minus_infinity();
    row.take(call, row.length_of(call.window), row.length_of(call.extra));
    take_turn();
    const float sum = sum_of_team(call, row, weighed);
    ask_teams(call, row, unit, quads);
    shares[unit.chunk][lane] = share_of_team(sum, sink * LOG2_E);
    __syncthreads();
    await_copies();
    float sums[2][2] = {};
#pragma unroll 4
    for (int team = 0; team < row.teams; team++) {
        const float4 quad = quads[team * UNIT_QUADS + threadIdx.x];
        const float low = shares[0][team], high = shares[1][team];
        sums[0][0] = fmaf(low, quad.x, sums[0][0]);
        sums[0][1] = fmaf(low, quad.y, sums[0][1]);
        sums[1][0] = fmaf(high, quad.z, sums[1][0]);
        sums[1][1] = fmaf(high, quad.w, sums[1][1]);
    }
    write_unit(call, row, unit, sums);
}
