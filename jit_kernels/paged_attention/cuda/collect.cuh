// What becomes of the sums of a row: one team writes its own; several add up theirs, each block a
// part, in the order of teams. Teams of one cluster send each other parts; others leave their sums
// in memory and wait for each other.
#pragma once

#include "attend.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
// Sums of the channels of one rank by fours: two neighbours, of two heads eight apart. They are in
// order of the threads of a group of warps, then columns by eight, then the two groups.
constexpr int QUADS = HEADS * OWN * CHUNK / 4;

// The sinks of a thread's two heads, which are asked for long before they are needed.
struct Sinks {
    float values[2];

    __device__ Sinks(const Call &call, unsigned warp, unsigned lane) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned head = warp % 4 * 16 + half * 8 + lane / 4;
            values[half] = head < call.heads ? read_float(call.sink + head) : minus_infinity();
        }
    }

    __device__ float of(int half) const { return values[half] * LOG2_E; }
};

// A part of a whole, which is 0 or at least 1.
__device__ inline float share_of(float part, float whole) {
    return whole == 0.0f ? 0.0f : __fdividef(part, whole);
}

__device__ inline void write_pair(__nv_bfloat16 *to, float low, float high) {
    *reinterpret_cast<unsigned *>(to) = pair_of(low, high);
}

__device__ inline void write_alone(const Call &call, const Row &row, const Sums &sums,
                                   const Sinks &sinks, int rank, unsigned warp, unsigned lane) {
    const int head = warp % 4 * 16 + lane / 4;
    __nv_bfloat16 *const to = call.out + (row.nth * call.heads + head) * WIDTH +
                              (rank * OWN + (int)warp / 4) * CHUNK + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sink = sinks.of(half);
        const float base = base_of(fmaxf(sums.greatest[half], sink));
        const float factor = power_of_two(sums.greatest[half] - base);
        const float whole = sums.total[half] * factor + power_of_two(sink - base);
        const float share = share_of(factor, whole);
        if (head + half * 8 >= call.heads) continue;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float *const pair = sums.values + j * 4 + half * 2;
            write_pair(to + half * 8 * WIDTH + j * 8, pair[0] * share, pair[1] * share);
        }
    }
}

// Put down the mean of what this team attends, and the logarithm of its sum of weights.
__device__ inline void put_sums(float4 *means, float *logarithms, const Sums &sums, unsigned warp,
                                unsigned lane) {
    float share[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float total = sums.total[half];
        share[half] = share_of(1.0f, total);
        const unsigned head = warp % 4 * 16 + half * 8 + lane / 4;
        if (warp >= 4 || lane % 4) continue;
        logarithms[head] = base_of(sums.greatest[half]) + binary_logarithm(total);
    }
    means += warp / 4 * (QUADS / 2) + threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float *const mine = sums.values + j * 4;
        means[j * GROUP] = make_float4(mine[0] * share[0], mine[1] * share[0], mine[2] * share[1],
                                       mine[3] * share[1]);
    }
}

// The part of a rank's sums that a team adds up.
struct Part {
    int first, count;

    __device__ Part(int team, int teams) {
        const int most = (unsigned)(QUADS + teams - 1) / (unsigned)teams;
        first = team * most;
        count = min(most, QUADS - first);
    }
};

// What a block adds up, in shared memory that products no longer need: its part of the sums of all
// teams, one after the other, and what teams count for.
struct Collected {
    static constexpr int GROUPS = 4, LANES = 4;
    float4 quads[QUADS + MOST_TEAMS];
    float shares[MOST_TEAMS][HEADS];
    float logarithms[MOST_TOGETHER][HEADS];  // of teams of one cluster

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

    // Find what teams count for, by logarithms of their sums of weights: four lanes a head, each
    // every fourth team.
    __device__ void weigh(const float *logarithms, const Row &row, const Sinks &sinks,
                          unsigned warp, unsigned lane) {
        constexpr int EACH = MOST_TEAMS / LANES;
        const unsigned head = warp % 4 * 16 + warp / 4 * 8 + lane / 4, first = lane % LANES;
        const float *const from = logarithms + first * HEADS + head;
        float sums[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool found = i * LANES + first < (unsigned)row.teams;
            sums[i] = found ? from[i * LANES * HEADS] : minus_infinity();
        }
        const float sink = warp < 4 ? sinks.of(0) : sinks.of(1);
        float most = sink, whole = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) most = fmaxf(most, sums[i]);
        const float base = base_of(greatest_of(most));
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            sums[i] = power_of_two(sums[i] - base);
            whole += sums[i];
        }
        const float share = share_of(1.0f, added(whole) + power_of_two(sink - base));
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

// Let teams of memory have this block's sums, and ask for its part of theirs.
__device__ inline void meet_in_memory(const Call &call, const Row &row, const Sums &sums,
                                      Collected &collected, const Part &part, unsigned meetings,
                                      int team, int rank, unsigned warp, unsigned lane) {
    // Sums of weights are the same in all blocks of a team.
    float4 *const from = call.partials + (row.nth * call.teams * TEAM + rank) * QUADS;
    float *const logarithms = call.sums + row.nth * call.teams * HEADS;
    put_sums(from + team * (TEAM * QUADS), logarithms + team * HEADS, sums, warp, lane);
    meet_blocks(call.meetings + row.nth, meetings, row.teams * TEAM, team == 0 && rank == 0);
    collected.ask(from + part.first, part.count, row.teams);
}

// The same among teams of one cluster, all blocks of which have arrived since they used `queries`.
__device__ inline void meet_in_cluster(const Row &row, const Sums &sums, Shared &shared,
                                       Collected &collected, const Part &part, int team, int rank,
                                       unsigned warp, unsigned lane) {
    // The values of others are no longer needed when all of this block have added them.
    float4 *const means = reinterpret_cast<float4 *>(shared.values);
    float *const logarithms = shared.bias;
    static_assert(sizeof(shared.values) >= QUADS * sizeof(float4) && KEYS >= HEADS);
    __syncthreads();
    put_sums(means, logarithms, sums, warp, lane);
    show_to_products();
    await_cluster();
    __syncthreads();
    if (threadIdx.x == 0) {
        constexpr int LINE = HEADS * sizeof(float);
        expect_bytes(&shared.summed, row.teams * (part.count * (int)sizeof(float4) + LINE));
#pragma unroll 1
        for (int other = 0; other < row.teams; other++) {
            const Part its(other, row.teams);
            const int to = other * TEAM + rank;
            const unsigned barrier = at_rank(&shared.summed, to);
            send(at_rank(collected.quads + team * its.count, to), means + its.first,
                 its.count * sizeof(float4), barrier);
            send(at_rank(collected.logarithms[team], to), logarithms, LINE, barrier);
        }
    }
    __syncwarp();
    await_phase(&shared.summed, 0);
    // No block ends while what it sent may still be read.
    arrive_at_cluster<false>();
}

// Add up this block's part of its rank's channels, and write it. Loops are not unrolled, since each
// instruction is used once or twice. `meetings` is what the row's number was when the kernel began.
__device__ inline void share_row(const Call &call, const Row &row, const Sums &sums,
                                 const Sinks &sinks, Shared &shared, unsigned meetings, int team,
                                 int rank, unsigned warp, unsigned lane) {
    Collected &collected = *reinterpret_cast<Collected *>(shared.queries);
    const Part part(team, row.teams);
    const float *logarithms = collected.logarithms[0];
    if (call.together) {
        meet_in_cluster(row, sums, shared, collected, part, team, rank, warp, lane);
    } else {
        meet_in_memory(call, row, sums, collected, part, meetings, team, rank, warp, lane);
        logarithms = call.sums + row.nth * call.teams * HEADS;
    }
    collected.weigh(logarithms, row, sinks, warp, lane);
    await_copies();
    __syncthreads();
#pragma unroll 1
    for (int at = threadIdx.x; at < part.count; at += THREADS) {
        const unsigned quad = part.first + at, thread = quad % GROUP;
        const int head = thread / 32 * 16 + thread % 32 / 4;
        const int channel = rank * OWN * CHUNK + quad / GROUP * 8 + thread % 4 * 2;
        const float4 sum = collected.sum(at, part.count, row.teams, head);
        __nv_bfloat16 *const to = call.out + (row.nth * call.heads + head) * WIDTH + channel;
        if (head < call.heads) write_pair(to, sum.x, sum.y);
        if (head + 8 < call.heads) write_pair(to + 8 * WIDTH, sum.z, sum.w);
    }
}
