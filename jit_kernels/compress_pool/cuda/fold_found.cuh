// What a kernel that guesses has to find out: which tokens a task has. How channels of a record meet
// without a barrier of the cluster.
#pragma once

#include "fold_chunks.cuh"

// What a task turns out to be: tokens of phases [first, last], the last of which is `token`, from a
// bank on or from nothing; without a token, what a bank has. A block goes to a slot. It is live
// unless it turns out not to be wanted.
struct Found {
    long long token = -1, slot = 0, bank = -1;
    int first = 0, last = -1;
    bool live = false;

    // In a step of one row, the tokens of which follow each other.
    __device__ void of_row(const FoldChunks &call, const Task &task, long long source,
                           long long place, long long start, long long from) {
        if (find(call, task, source, place)) span(call, start + token, 0, start, from);
    }
    // In any step.
    __device__ void load(const FoldChunks &call, const Task &task) {
        if (!task.any()) return;
        const long long place = task.entry < 0 ? call.ended.slots[task.block] : 0;
        if (!find(call, task, *task.source(call), place)) return;
        const long long row = call.chunks.row[token];
        span(call, call.chunks.position[token], row, call.chunks.start[row],
             call.window_from[row]);
    }

  private:
    // Say whether there are tokens.
    __device__ bool find(const FoldChunks &call, const Task &task, long long source,
                         long long place) {
        slot = place;
        live = task.any() && (task.entry < 0 ? place > 0 : source >= 0);
        token = task.entry < 0 ? source : source - call.saves.old;
        if (!live || token >= 0) return live;
        const long long ring = call.chunks.ring[source / call.banks.count];
        bank = ring * call.banks.count + source % call.banks.count;
        return false;
    }
    // Find which phases up to a position are in its chunk.
    __device__ void span(const FoldChunks &call, long long position, long long row,
                         long long start, long long from) {
        last = position % BLOCK;
        const long long fresh = position - start;
        first = fresh < last ? last - (int)fresh : 0;
        if (first > 0 && start > from) bank = call.banks.bank(call.chunks.ring[row], start - 1);
    }
};

// Store a number where `at` is in the memory of the block of `rank`; its `barrier` counts the bytes.
__device__ inline void send_in_cluster(void *at, int rank, float value, void *barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
            at_rank(at, rank)),
        "r"(__float_as_uint(value)), "r"(at_rank(barrier, rank))
        : "memory");
}

// The sum of the squares of a warp's channels.
__device__ inline float squares_of_warp(float x) {
    const int lane = threadIdx.x % 32, first = 4 * (lane % (LANES / 4));
    return squares_of_lanes<LANES / 4>(
        make_float4(__shfl_sync(ALL, x, first), __shfl_sync(ALL, x, first + 1),
                    __shfl_sync(ALL, x, first + 2), __shfl_sync(ALL, x, first + 3)));
}
