// How the blocks of a cluster choose from a row that they hold together. Each hands the first of
// them, the leader, what reaches a floor of its own, set so low that its part of the `top_k` most
// likely lies above it; the leader chooses. No block has held back anything that reaches the highest
// floor, so a choice above that is exact; else the leader goes through the row.
#pragma once

#include "cluster.cuh"
#include "held_rows.cuh"
#include "places.cuh"

constexpr int CLUSTER = 16;  // blocks that hold a row; a device is asked whether it takes them
constexpr int CLUSTER_TOP_K = 1024;
constexpr int ALONE = 8, ALONE_COLUMNS = ALONE * THREADS;  // such rows the leader holds by itself
constexpr int HANDED = CAPACITY / CLUSTER;                 // what a block may hand in
constexpr int LONGEST_RUN = 8;

// What a block tells the leader besides its candidates: their number, its floor and its highest key.
struct Share {
    int found;
    unsigned floor, highest, unused;
};

// What a block shares; the candidates and shares of the leader are what all blocks send it.
struct Ballot {
    Held<ALONE> held;
    uint2 candidates[CAPACITY];  // key, column; those of a block are CLUSTER apart
    uint4 marks[MARKS];
    int2 buckets[THREADS];
    union {
        // Runs of neighbouring scores of which one reaches the floor, and where they begin.
        struct {
            alignas(16) float runs[HANDED * LONGEST_RUN];
            int places[HANDED];
        };
        int pages[CAPACITY];
        int bins[BINS];
    };
    uint2 mine[HANDED];  // key, column: what this block hands in
    Share shares[CLUSTER];
    unsigned long long all_sent;  // a barrier
    int found, named;
    Scratch scratch;
};

static_assert(32 % CLUSTER == 0 && HANDED <= THREADS && CLUSTER_TOP_K <= CAPACITY);

// Make a block's part ready, before its row is there.
__device__ inline void open_ballot(Ballot &ballot) {
    if (!blockIdx.x && threadIdx.x == 0) {
        make_barrier(&ballot.all_sent, CLUSTER);
        show_barriers();
    }
    arrive_in_cluster();
    clear(ballot.held.counters);
    if (!blockIdx.x) clear_places(ballot.marks, ballot.buckets);
    if (threadIdx.x == 0) ballot.found = ballot.named = 0;
}

// Send the leader what is listed, `share.found`; of more than HANDED, only how many they were.
__device__ inline void hand_in(const Share &share, const Ballot &ballot) {
    const unsigned barrier = of_leader(&ballot.all_sent);
    const int sent = share.found <= HANDED ? share.found : 0;
    const int slot = threadIdx.x;
    if (slot < sent) {
        const unsigned to = of_leader(&ballot.candidates[slot * CLUSTER + blockIdx.x]);
        send(to, ballot.mine[slot], barrier);
    }
    if (threadIdx.x == 0) {
        send(of_leader(&ballot.shares[blockIdx.x]),
             make_uint4(share.found, share.floor, share.highest, 0), barrier);
        announce(barrier, (int)(sizeof(Share) + sizeof(uint2) * sent));
    }
}

// Choose among what all blocks of a row have handed in, of each `most` at most. False if too few
// reach the highest floor.
__device__ inline bool elect(int most, unsigned floor, unsigned highest, int top_k, int count,
                             const Target &out, Ballot &ballot) {
    const int each = (most * CLUSTER + THREADS - 1) / THREADS;
    int reached = 0;
#pragma unroll 1
    for (int i = 0; i < each; i++) {
        const int at = i * THREADS + (int)threadIdx.x;
        const uint2 one = ballot.candidates[at];
        const bool there = at / CLUSTER < ballot.shares[at % CLUSTER].found && one.x >= floor;
        if (!there) {
            ballot.candidates[at].x = 0;
        } else if (out.table) {
            copy_word_ahead(&ballot.pages[at], out.page_at((int)one.y));
        }
        reached += __syncthreads_count(there);
    }
    if (reached < top_k) return false;
    const auto key = [&](int i) { return ballot.candidates[i * THREADS + threadIdx.x].x; };
    const auto column = [&](int i) { return ballot.candidates[i * THREADS + threadIdx.x].y; };
    const auto page = [&](int i) { return ballot.pages[i * THREADS + threadIdx.x]; };
    Counters &counters = ballot.held.counters;
    const Cut cut = find_cut<0>(key, column, count, top_k, floor, highest, counters, each);
    const auto chosen = [&](int i) { return cut.takes(key(i), column(i)); };
    await_copies();
    place_chosen<0>(chosen, column, page, 0, 0, out, ballot.marks, ballot.buckets,
                    counters.totals, each);
    return true;
}

// What the leader does: choose when all have handed in.
__device__ inline void lead(const float *data, int count, int top_k, const Target &out,
                            Ballot &ballot) {
    await_phase(&ballot.all_sent, 0);
    const Share share = ballot.shares[threadIdx.x % CLUSTER];
    const int most = (int)__reduce_max_sync(ALL, (unsigned)share.found);
    const unsigned floor = __reduce_max_sync(ALL, share.floor);
    const unsigned highest = __reduce_max_sync(ALL, share.highest);
    if (most <= HANDED && elect(most, floor, highest, top_k, count, out, ballot)) return;
    await_copies();  // of pages, which lie where bins do
    __syncthreads();
    select_all([=](int i) { return order(data[i]); }, count, top_k, out, ballot.bins,
               ballot.scratch);
}

// Choose from a row that the leader holds by itself.
__device__ inline void choose_alone(const float *data, int count, int top_k, const Target &out,
                                    Ballot &ballot) {
    float all[ALONE];
#pragma unroll
    for (int i = 0; i < ALONE; i++) {
        all[i] = held_column(i) < count ? data[held_column(i)] : 0.0f;
    }
    choose_held(all, count, top_k, out, ballot.held);
}
