// What becomes of the sums of a row: one team writes its own; several leave theirs in memory, wait
// for each other, and each writes a part of what they add up to, in the order of teams.
#pragma once

#include "attend.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
// Pairs of neighbouring sums that are of the channels of one rank: those of a thread and head after
// each other, then threads, then columns by eight, then the two groups of warps.
constexpr int PAIRS = HEADS * OWN * CHUNK / 2;

__device__ inline float sink_of(const Call &call, int head) {
    return head < call.heads ? call.sink[head] * LOG2_E : minus_infinity();
}

__device__ inline void write_pair(const Call &call, long long nth, int head, int channel, float low,
                                  float high) {
    if (head >= call.heads) return;
    const long long at = (nth * call.heads + head) * WIDTH + channel;
    *reinterpret_cast<unsigned *>(call.out + at) = pair_of(low, high);
}

__device__ inline void write_alone(const Call &call, const Row &row, const Sums &sums, int rank,
                                   int warp, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int head = warp % 4 * 16 + half * 8 + lane / 4;
        const float sink = sink_of(call, head);
        const float base = base_of(fmaxf(sums.greatest[half], sink));
        const float factor = power_of_two(sums.greatest[half] - base);
        const float whole = sums.total[half] * factor + power_of_two(sink - base);
        const float share = whole == 0.0f ? 0.0f : factor / whole;
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
        share[half] = total == 0.0f ? 0.0f : 1.0f / total;
        const int head = warp * 16 + half * 8 + lane / 4;
        if (rank || warp >= 4 || lane % 4) continue;
        call.sums[nth * HEADS + head] = base_of(sums.greatest[half]) + binary_logarithm(total);
    }
    float4 *const to = reinterpret_cast<float4 *>(call.partials + (nth * TEAM + rank) * PAIRS);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float *const mine = sums.values + j * 4;
        to[(warp / 4 * 8 + j) * (THREADS / 2) + threadIdx.x % (THREADS / 2)] =
            make_float4(mine[0] * share[0], mine[1] * share[0], mine[2] * share[1],
                        mine[3] * share[1]);
    }
}

// What teams count for, in shared memory that products no longer need.
struct Shares {
    static constexpr int GROUPS = THREADS / HEADS;
    float factor[MOST_TEAMS][HEADS];
    float greatest[GROUPS][HEADS], total[GROUPS][HEADS], rest[HEADS];

    __device__ void find(const Call &call, const Row &row) {
        constexpr int EACH = MOST_TEAMS / GROUPS;
        const int head = threadIdx.x % HEADS, group = threadIdx.x / HEADS;
        const float *const from = call.sums + row.nth * call.teams * HEADS + head;
        float sums[EACH], most = minus_infinity(), whole = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int team = i * GROUPS + group;
            sums[i] = team < row.teams ? __ldcg(from + team * HEADS) : minus_infinity();
            most = fmaxf(most, sums[i]);
        }
        const float sink = sink_of(call, head);
        greatest[group][head] = most;
        __syncthreads();
        most = sink;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) most = fmaxf(most, greatest[i][head]);
        const float base = base_of(most);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float mine = power_of_two(sums[i] - base);
            factor[i * GROUPS + group][head] = mine;
            whole += mine;
        }
        total[group][head] = whole;
        if (!group) rest[head] = power_of_two(sink - base);
        __syncthreads();
    }

    // What the sum of a head is to be multiplied with.
    __device__ float share(int head) const {
        float whole = rest[head];
#pragma unroll
        for (int i = 0; i < GROUPS; i++) whole += total[i][head];
        return whole == 0.0f ? 0.0f : 1.0f / whole;
    }
};
static_assert(sizeof(Shares) <= sizeof(Shared::queries));

// Write this block's part of its rank's channels. Of up to MOST teams, all pairs that a thread adds
// are under way at once.
template <int MOST>
__device__ inline void collect(const Call &call, const Row &row, Shares &shares, int team,
                               int rank) {
    constexpr int ROUNDS = MOST_TEAMS / MOST;
    const int end = PAIRS * (team + 1) / row.teams;
    const int first = PAIRS * team / row.teams + threadIdx.x;
    const float2 *const from =
        call.partials + (row.nth * call.teams * TEAM + rank) * (long long)PAIRS;
    float2 pairs[ROUNDS][MOST] = {};
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int at = first + i * THREADS;
        if (at >= end) continue;
#pragma unroll
        for (int other = 0; other < MOST; other++) {
            if (other < row.teams) pairs[i][other] = __ldcg(from + at + other * (TEAM * PAIRS));
        }
    }
    shares.find(call, row);
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int at = first + i * THREADS;
        if (at >= end) continue;
        const int thread = at / 2 % (THREADS / 2), warp = thread / 32, lane = thread % 32;
        const int head = warp * 16 + at % 2 * 8 + lane / 4;
        const int channel = rank * OWN * CHUNK + at / THREADS * 8 + lane % 4 * 2;
        float low = 0.0f, high = 0.0f;
#pragma unroll
        for (int other = 0; other < MOST; other++) {
            const float factor = shares.factor[other][head];
            low += factor * pairs[i][other].x;
            high += factor * pairs[i][other].y;
        }
        const float share = shares.share(head);
        write_pair(call, row.nth, head, channel, low * share, high * share);
    }
}

// `meetings` is what the row's number was when the kernel began.
__device__ inline void share_row(const Call &call, const Row &row, const Sums &sums, Shared &shared,
                                 unsigned meetings, int team, int rank, int warp, int lane) {
    leave(call, row, sums, team, rank, warp, lane);
    meet_blocks(call.meetings + row.nth, meetings, row.teams * TEAM, team == 0 && rank == 0);
    Shares &shares = *reinterpret_cast<Shares *>(shared.queries);
    if (row.teams <= 4) {
        collect<4>(call, row, shares, team, rank);
    } else if (row.teams <= 8) {
        collect<8>(call, row, shares, team, rank);
    } else if (row.teams <= 16) {
        collect<16>(call, row, shares, team, rank);
    } else {
        collect<32>(call, row, shares, team, rank);
    }
}
