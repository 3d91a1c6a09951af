// What becomes of the sums of a row: one team writes its own; several leave theirs in memory, wait
// for each other, and each writes a part of what they add up to, in the order of teams.
#pragma once

#include "attend.cuh"

// Sums of the channels of one rank by fours: two neighbours, of two heads eight apart. They are in
// order of the threads of a group of warps, then columns by eight, then the two groups.
constexpr int QUADS = HEADS * OWN * CHUNK / 4;

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
        call.sums[nth * HEADS + head] = base_of(sums.greatest[half]) + binary_logarithm(total);
    }
    float4 *const to = call.partials + (nth * TEAM + rank) * QUADS +
                       warp / 4 * (QUADS / 2) + threadIdx.x % (THREADS / 2);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float *const mine = sums.values + j * 4;
        to[j * (THREADS / 2)] = make_float4(mine[0] * share[0], mine[1] * share[0],
                                            mine[2] * share[1], mine[3] * share[1]);
    }
}

// What a block adds up, in shared memory that products no longer need: its part of the sums of all
// teams, one after the other, and what teams count for.
struct Collected {
    static constexpr int GROUPS = 4, LANES = 4;
    float4 quads[QUADS + MOST_TEAMS];
    float shares[MOST_TEAMS][HEADS];

    // Ask for parts of `count` each, a group of threads for every fourth team.
    __device__ void ask(const float4 *from, int count, int teams) {
        constexpr int GROUP = THREADS / GROUPS;
#pragma unroll 1
        for (int team = threadIdx.x / GROUP; team < teams; team += GROUPS) {
#pragma unroll 1
            for (int at = threadIdx.x % GROUP; at < count; at += GROUP) {
                copy_or_clear(quads + team * count + at, from + team * (TEAM * QUADS) + at, true);
            }
        }
    }

    // Find what teams count for: four lanes a head, each every fourth team.
    __device__ void weigh(const Call &call, const Row &row, const Sinks &sinks, int warp,
                          int lane) {
        constexpr int EACH = MOST_TEAMS / LANES;
        const int head = warp % 4 * 16 + warp / 4 * 8 + lane / 4, first = lane % LANES;
        const float *const from = call.sums + (row.nth * call.teams + first) * HEADS + head;
        float sums[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool found = i * LANES + first < row.teams;
            sums[i] = found ? __ldcg(from + i * LANES * HEADS) : minus_infinity();
        }
        const float sink = warp < 4 ? sinks.of(0) : sinks.of(1);
        float most = sink, whole = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) most = fmaxf(most, sums[i]);
        const float base = base_of(greatest_of(most));
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            sums[i] = power(sums[i] - base);
            whole += sums[i];
        }
        const float share = share_of(1.0f, added(whole) + power(sink - base));
#pragma unroll
        for (int i = 0; i < EACH; i++) shares[i * LANES + first][head] = sums[i] * share;
    }

    // Add up a quad of each of `teams` parts, in their order. After the last one it is read again,
    // and counts for nothing.
    __device__ float4 sum(int at, int count, int teams, int head) const {
        constexpr int AT_ONCE = 4;
        float4 sum = {};
#pragma unroll 1
        for (int first = 0; first < teams; first += AT_ONCE) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const float4 quad = quads[min(first + i, teams - 1) * count + at];
                const float low = shares[first + i][head], high = shares[first + i][head + 8];
                sum.x += low * quad.x;
                sum.y += low * quad.y;
                sum.z += high * quad.z;
                sum.w += high * quad.w;
            }
        }
        return sum;
    }
};
static_assert(sizeof(Collected) <= sizeof(Shared::queries));

// Write this block's part of its rank's channels. Loops are not unrolled: after other kernels the
// instructions come from far, and each is used once or twice.
__device__ inline void collect(const Call &call, const Row &row, const Sinks &sinks,
                               Collected &collected, int team, int rank, int warp, int lane) {
    const unsigned teams = row.teams, part = (QUADS + teams - 1) / teams;
    const int first = team * part, count = min((int)part, QUADS - first);
    const float4 *const from = call.partials + (row.nth * call.teams * TEAM + rank) * QUADS;
    collected.ask(from + first, count, row.teams);
    collected.weigh(call, row, sinks, warp, lane);
    await_copies();
    __syncthreads();
#pragma unroll 1
    for (int at = threadIdx.x; at < count; at += THREADS) {
        const unsigned quad = first + at, thread = quad % (THREADS / 2);
        const int head = thread / 32 * 16 + thread % 32 / 4;
        const int channel = rank * OWN * CHUNK + quad / (THREADS / 2) * 8 + thread % 4 * 2;
        const float4 sum = collected.sum(at, count, row.teams, head);
        if (head < call.heads) write_pair(call, row.nth, head, channel, sum.x, sum.y);
        if (head + 8 < call.heads) write_pair(call, row.nth, head + 8, channel, sum.z, sum.w);
    }
}

// `meetings` is what the row's number was when the kernel began.
__device__ inline void share_row(const Call &call, const Row &row, const Sums &sums,
                                 const Sinks &sinks, Shared &shared, unsigned meetings, int team,
                                 int rank, int warp, int lane) {
    leave(call, row, sums, team, rank, warp, lane);
    meet_blocks(call.meetings + row.nth, meetings, row.teams * TEAM, team == 0 && rank == 0);
    Collected &collected = *reinterpret_cast<Collected *>(shared.queries);
    collect(call, row, sinks, collected, team, rank, warp, lane);
}
