// Top-k of few rows, longer than one block holds in few registers: the blocks of a cluster hold them,
// in runs of neighbouring scores. What reaches a floor is found by the highest of each run.
#pragma once

#include "ballot.cuh"
#include "device/order.cuh"

constexpr int RUNS = 4;  // that a thread holds, of RUN scores each: more take more code

constexpr int columns_of_runs(int run) { return CLUSTER * THREADS * RUNS * run; }

static_assert(columns_of_runs(LONGEST_RUN) <= WINDOW);

// Where a thread's runs begin: lines of 32 scores are dealt out to the blocks in turn.
template <int RUN>
__device__ inline int run_place(int nth) {
    const int place = (int)threadIdx.x * RUN;
    return (place / 32 * CLUSTER + (int)blockIdx.x) * 32 + place % 32 + nth * CLUSTER * THREADS * RUN;
}

// Load four scores, before the row's length is known: the compiler must not wait for it.
__device__ inline void load_four(float *to, const float *from) {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "l"(from)
                 : "memory");
}

template <int RUN>
__device__ inline void load_run(float (&run)[RUN], const float *data, int first, int columns) {
#pragma unroll
    for (int j = 0; j < RUN; j++) {
        run[j] = first + j < columns ? load_early(data + first + j) : 0.0f;
    }
}

// The same of a run at a multiple of 16 bytes.
template <int RUN>
__device__ inline void load_aligned(float (&run)[RUN], const float *data, int first, int columns) {
#pragma unroll
    for (int j = 0; j < RUN; j += 4) {
        if (first + j + 3 < columns) {
            load_four(&run[j], data + first + j);
        } else {
            for (int k = j; k < j + 4; k++) {
                run[k] = first + k < columns ? data[first + k] : 0.0f;
            }
        }
    }
}

// The highest key of a run of which `count` scores are seen, 0 if none is.
template <int RUN>
__device__ inline unsigned highest_of(const float (&run)[RUN], int count) {
    float most = run[0];
#pragma unroll
    for (int j = 1; j < RUN; j++) most = higher(most, j < count ? run[j] : run[0]);
    return count > 0 ? order(most) : 0;
}

// A block's floor, and its highest key: so many of its runs reach the floor that the block's part of
// the `top_k`, were they dealt out by chance, would by five deviations; it is 1 if they are too few.
__device__ inline Share floor_of_share(const unsigned (&highest)[RUNS], int top_k,
                                       Counters &counters) {
    const float part = (float)top_k / CLUSTER;
    const int need = (int)(part + 5.0f * sqrtf(part)) + 4;
    // As many runs as there are threads with one reach the least of their best.
    unsigned best[1] = {};
#pragma unroll
    for (int i = 0; i < RUNS; i++) best[0] = max(best[0], highest[i]);
    const Spread spread = spread_of(best, counters);
    if (spread.count < need) return {0, 1, spread.most};
    const auto key = [&](int i) { return highest[i]; };
    const Part part_above =
        close_in<RUNS>(key, need, need + need / 2, 0, spread.least, spread.most, counters);
    return {0, part_above.low, spread.most};
}

// The key of the i-th score of the runs that are written down, 0 if it is not seen.
template <int RUN>
__device__ inline unsigned run_key(int i, int count, const Ballot &ballot) {
    return ballot.places[i / RUN] + i % RUN < count ? order(ballot.runs[i]) : 0;
}

// List what reaches a floor of `all` scores of runs, and return how many do; of more than HANDED, any.
template <int RUN>
__device__ inline int list_keys(int all, unsigned floor, int count, Ballot &ballot) {
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += THREADS) {
        const unsigned key = run_key<RUN>(i, count, ballot);
        if (key < floor) continue;
        const int slot = atomicAdd(&ballot.found, 1);
        if (slot < HANDED) ballot.mine[slot] = make_uint2(key, ballot.places[i / RUN] + i % RUN);
    }
    __syncthreads();
    return ballot.found;
}

// List what a block hands in. Threads write down the runs of which one score reaches the floor: in
// registers each score would take code of its own. Where high scores are neighbours these have too
// many, and a higher floor is set, unless too many are equal.
template <int RUN>
__device__ inline void list_share(const float (&held)[RUNS][RUN], const unsigned (&highest)[RUNS],
                                  int count, Share &share, Ballot &ballot) {
#pragma unroll
    for (int n = 0; n < RUNS; n++) {
        if (highest[n] < share.floor) continue;
        const int at = atomicAdd(&ballot.named, 1);
        if (at >= HANDED) continue;
        ballot.places[at] = run_place<RUN>(n);
#pragma unroll
        for (int j = 0; j < RUN; j++) ballot.runs[at * RUN + j] = held[n][j];
    }
    __syncthreads();
    share.found = ballot.named;
    if (share.found > HANDED) return;
    const int all = share.found * RUN;
    share.found = list_keys<RUN>(all, share.floor, count, ballot);
    if (RUN == 1 || share.found <= HANDED) return;
    const auto key = [&](int i) {
        const int at = i * THREADS + (int)threadIdx.x;
        return at < all ? run_key<RUN>(at, count, ballot) : 0;
    };
    share.floor = close_in<0>(key, HANDED / 2, HANDED, 0, share.floor, share.highest,
                              ballot.held.counters, (all + THREADS - 1) / THREADS)
                      .low;
    if (threadIdx.x == 0) ballot.found = 0;
    __syncthreads();
    share.found = list_keys<RUN>(all, share.floor, count, ballot);
}

// ALIGNED  all rows begin at multiples of 16 bytes
template <int RUN, bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 1) cluster_rows(Scores scores, Target target) {
    extern __shared__ __align__(16) unsigned char memory[];
    Ballot &ballot = *reinterpret_cast<Ballot *>(memory);
    const int nth = blockIdx.y, top_k = scores.top_k;
    const bool leads = !blockIdx.x;
    const float *const data = scores.data + nth * scores.stride;
    const Target out = target.of(nth);
    open_ballot(ballot);
    float held[RUNS][RUN];
    let_next_begin_if(scores.next_settled);
    take_turn();
#pragma unroll
    for (int n = 0; n < RUNS; n++) {
        if constexpr (ALIGNED) {
            load_aligned(held[n], data, run_place<RUN>(n), scores.columns);
        } else {
            load_run(held[n], data, run_place<RUN>(n), scores.columns);
        }
    }
    const int count = seen(scores, nth);
    wait_for_cluster();  // the leader has begun: its memory may be written
    if (leads) out.end_at(min(count, top_k));
    if (count <= ALONE_COLUMNS) {
        if (leads) choose_alone(data, count, top_k, out, ballot);
        return;
    }
    unsigned highest[RUNS];
#pragma unroll
    for (int n = 0; n < RUNS; n++) {
        highest[n] = highest_of(held[n], count - run_place<RUN>(n));
    }
    Share share = floor_of_share(highest, top_k, ballot.held.counters);
    list_share(held, highest, count, share, ballot);
    hand_in(share, ballot);
    if (leads) lead(data, count, top_k, out, ballot);
}
