// Top-k of few rows, longer than one block holds in few registers. The blocks of a cluster hold
// lines of 32 scores, dealt out in turn. Each hands the first of them, the leader, what reaches a
// floor of its own, set so low that its part of the `top_k` most likely lies above it; the leader
// chooses. No block has held back anything that reaches the highest floor, so a choice above that
// is exact; else the leader goes through the row.
#pragma once

#include "cluster.cuh"
#include "device/order.cuh"
#include "held_rows.cuh"
#include "places.cuh"

constexpr int CLUSTER = SHARES;  // blocks that hold a row; a device is asked whether it takes 16
constexpr int DEALT = 4;         // scores of a row that a thread holds: more take more code
constexpr int STEP = CLUSTER * THREADS;  // columns from one of them to the next
constexpr int CLUSTER_COLUMNS = STEP * DEALT, CLUSTER_TOP_K = 1024;
constexpr int ALONE = 8, ALONE_COLUMNS = ALONE * THREADS;  // such rows the leader holds by itself
constexpr int HANDED = CAPACITY / CLUSTER;                 // what a block may hand in

// What a block shares; the candidates and shares of the leader are what all blocks send it.
struct Ballot {
    Held<ALONE> held;
    union {
        uint2 candidates[CAPACITY];  // key, column; those of a block are CLUSTER apart
        uint4 marks[MARKS];
        int bins[BINS];
    };
    union {
        uint2 mine[HANDED];  // key, column: what this block hands in
        int2 buckets[THREADS];
    };
    uint2 shares[CLUSTER];        // how many candidates of a block, its floor
    unsigned long long all_sent;  // a barrier
    int found;
    Scratch scratch;
};

static_assert(32 % CLUSTER == 0 && CLUSTER_COLUMNS <= WINDOW && HANDED <= THREADS);

// The column of a thread's i-th score.
__device__ inline int dealt_column(int i) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return (warp * CLUSTER + (int)blockIdx.x) * 32 + lane + i * STEP;
}

// The floor of a block: so many of its threads have keys that reach it that the block's part of
// the `top_k`, were they dealt out by chance, would by five deviations. A row that is not held
// alone has scores for half of the threads, which are more.
__device__ inline unsigned floor_of_share(const unsigned (&keys)[DEALT], int top_k,
                                          Counters &counters) {
    const float part = (float)top_k / CLUSTER;
    const int need = (int)(part + 5.0f * sqrtf(part)) + 4;
    unsigned best[1] = {};
#pragma unroll
    for (int i = 0; i < DEALT; i++) best[0] = max(best[0], keys[i]);
    const Spread spread = spread_of(best, counters);
    const auto key = [&](int) { return best[0]; };
    return close_in<1>(key, need, need + need / 2, 0, spread.least, spread.most, counters).low;
}

// List what reaches a floor, and return how much that is; of more than HANDED, any of it.
// `ballot.found` is 0.
__device__ inline int list_above(const unsigned (&keys)[DEALT], unsigned floor, Ballot &ballot) {
#pragma unroll
    for (int i = 0; i < DEALT; i++) {
        if (keys[i] < floor) continue;
        const int slot = atomicAdd(&ballot.found, 1);
        if (slot < HANDED) ballot.mine[slot] = make_uint2(keys[i], dealt_column(i));
    }
    __syncthreads();
    return ballot.found;
}

// Send the leader the list; or, of more than HANDED, how many they were.
__device__ inline void hand_in(int found, unsigned floor, const Ballot &ballot) {
    const unsigned barrier = of_leader(&ballot.all_sent);
    const int sent = found <= HANDED ? found : 0;
    const int slot = threadIdx.x;
    if (slot < sent) {
        const unsigned to = of_leader(&ballot.candidates[slot * CLUSTER + blockIdx.x]);
        send(to, ballot.mine[slot], barrier);
    }
    if (threadIdx.x == 0) {
        send(of_leader(&ballot.shares[blockIdx.x]), make_uint2(found, floor), barrier);
        announce(barrier, (int)sizeof(uint2) * (sent + 1));
    }
}

// Choose among what all blocks of a row have handed in, EACH candidates a thread. False if too few
// reach the highest floor.
template <int EACH>
__device__ bool elect(int top_k, int count, const Target &out, Ballot &ballot) {
    const uint2 share = ballot.shares[threadIdx.x % CLUSTER];
    const unsigned floor = __reduce_max_sync(ALL, share.y);
    unsigned keys[EACH], columns[EACH];
    int pages[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        // Those of this thread are all of the same block.
        const int i = j * THREADS + threadIdx.x;
        const uint2 one = ballot.candidates[i];
        const bool there = (unsigned)i / CLUSTER < share.x && one.x >= floor;
        keys[j] = there ? one.x : 0;
        columns[j] = one.y;
        pages[j] = there ? out.page((int)one.y) : 0;
    }
    const Spread spread = spread_of(keys, ballot.held.counters);
    if (spread.count < top_k) return false;
    clear_places(ballot.marks, ballot.buckets);
    const Cut cut = find_cut(keys, [&](int j) { return columns[j]; }, count, top_k, spread.least,
                             spread.most, ballot.held.counters);
    bool chosen[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) chosen[j] = cut.takes(keys[j], columns[j]);
    place_chosen(chosen, columns, pages, 0, 0, out, ballot.marks, ballot.buckets,
                 ballot.held.counters.totals);
    return true;
}

// What the leader does when all have handed in.
__device__ inline void lead(const float *data, int count, int top_k, const Target &out,
                            Ballot &ballot) {
    const unsigned most = __reduce_max_sync(ALL, ballot.shares[threadIdx.x % CLUSTER].x);
    bool chosen = false;
    if (most <= HANDED / 2) {
        chosen = elect<CAPACITY / THREADS / 2>(top_k, count, out, ballot);
    } else if (most <= HANDED) {
        chosen = elect<CAPACITY / THREADS>(top_k, count, out, ballot);
    }
    if (chosen) return;
    __syncthreads();
    select_all([=](int i) { return order(data[i]); }, count, top_k, out, ballot.bins,
               ballot.scratch);
}

// The bound leaves registers to kernels of other streams: a cluster waits for all its places at
// once.
__global__ void __launch_bounds__(THREADS * 3 / 2) cluster_rows(Scores scores, Target target) {
    __shared__ Ballot ballot;
    const int nth = blockIdx.y, top_k = scores.top_k;
    const bool leads = !blockIdx.x;
    if (leads && threadIdx.x == 0) make_barrier(&ballot.all_sent, CLUSTER);
    arrive_in_cluster();
    const float *const data = scores.data + nth * scores.stride;
    const Target out = target.of(nth);
    clear(ballot.held.counters);
    if (threadIdx.x == 0) ballot.found = 0;
    take_turn();
    float mine[DEALT];
    const float *const first = data + dealt_column(0);
    const int beyond = scores.columns - dealt_column(0);
#pragma unroll
    for (int i = 0; i < DEALT; i++) {
        mine[i] = i * STEP < beyond ? load_early(first + i * STEP) : 0.0f;
    }
    const int count = seen(scores, nth);
    wait_for_cluster();  // the leader has begun: its memory may be written
    if (leads) out.end_at(min(count, top_k));
    if (count <= ALONE_COLUMNS) {
        if (!leads) return;
        float all[ALONE];
#pragma unroll
        for (int i = 0; i < ALONE; i++) {
            all[i] = held_column(i) < count ? data[held_column(i)] : 0.0f;
        }
        choose_held(all, count, top_k, out, ballot.held);
        return;
    }
    unsigned keys[DEALT];
#pragma unroll
    for (int i = 0; i < DEALT; i++) keys[i] = dealt_column(i) < count ? order(mine[i]) : 0;
    unsigned floor = floor_of_share(keys, top_k, ballot.held.counters);
    int found = 0;
#pragma unroll 1
    for (int tries = 0; tries < 2; tries++) {
        found = list_above(keys, floor, ballot);
        if (found <= HANDED || tries) break;
        // High scores are neighbours here. Above a higher floor there are fewer, if not too many
        // are equal.
        const auto key = [&](int i) { return keys[i]; };
        floor = close_in<DEALT>(key, HANDED / 2, HANDED, 0, floor, ALL, ballot.held.counters).low;
        if (threadIdx.x == 0) ballot.found = 0;
        __syncthreads();
    }
    hand_in(found, floor, ballot);
    if (!leads) return;
    wait_for(&ballot.all_sent);
    lead(data, count, top_k, out, ballot);
}
