// Top-k of few long rows. SHARES blocks hold a row in their registers, lines of 32 scores dealt out
// in turn. Each hands in what reaches a floor of its own, set so low that its part of the `top_k`
// most likely lies above it; the block that comes last chooses. No block has held back anything
// that reaches the highest floor, so a choice above that is exact; else one block goes through the
// row.
#pragma once

#include "device/order.cuh"
#include "kernels.cuh"

// Neighbouring scores that a thread holds, how often it does, and of how many a line is.
constexpr int RUN = 8, RUNS = 4, LINE = 32;
constexpr int FEW_COLUMNS = SHARES * THREADS * RUNS * RUN, FEW_TOP_K = 1024;
constexpr int SLOTS = CAPACITY / SHARES;  // what a block may hand in
constexpr int FINE_BITS = 11, FINE_BINS = 1 << FINE_BITS;
constexpr int STRETCH = FEW_COLUMNS / THREADS;  // columns that are counted together

static_assert(FEW_COLUMNS <= WINDOW && FINE_BINS <= BINS && 32 % SHARES == 0 && WARPS * 2 == 32);

// A border, how many keys are at least it, and how many are higher than it and those near it.
struct Narrow {
    unsigned key;
    int count, above;
};

// Find a border that at least `need` and at most `most` keys reach; or it is the `need`-th highest
// key and more are equal to it, `above` being higher. At least `need` keys lie in the range, and
// what is below it counts as nothing.
template <int EACH>
__device__ Narrow narrow(const unsigned (&keys)[EACH], int need, int most, Range range, int *bins,
                         Scratch &scratch) {
    constexpr int MINE = FINE_BINS / THREADS;
    unsigned low = range.least, span = range.most - range.least;
    int above = 0;
    while (true) {
        const int shift = max(0, 32 - FINE_BITS - __clz(span));
        for (int i = threadIdx.x; i < FINE_BINS; i += THREADS) bins[i] = 0;
        __syncthreads();
        for (const unsigned key : keys) {
            if (key >= low && key - low <= span) atomicAdd(&bins[(key - low) >> shift], 1);
        }
        __syncthreads();
        int mine[MINE];
        for (int j = 0; j < MINE; j++) mine[j] = bins[FINE_BINS - 1 - threadIdx.x * MINE - j];
        const Found found = find_bin<MINE>(mine, need - above, scratch);
        low += (unsigned)found.bin << shift;
        above += found.above;
        if (above + found.inside <= most || !shift) return {low, above + found.inside, above};
        span = (1u << shift) - 1;
    }
}

// Where a run of the block's begins; threads have the runs threadIdx.x + n * THREADS.
__device__ inline int run_place(int run) {
    const int line = run / (LINE / RUN);
    return (line * SHARES + (int)blockIdx.x) * LINE + run % (LINE / RUN) * RUN;
}

// Load four scores, before the row's length is known: the compiler must not wait for it.
__device__ inline void load_four(float *to, const float *from) {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "l"(from)
                 : "memory");
}

template <bool ALIGNED>
__device__ inline void load_runs(float (&held)[RUNS][RUN], const float *data, int columns) {
#pragma unroll
    for (int n = 0; n < RUNS; n++) {
        const int first = run_place(n * THREADS + threadIdx.x);
#pragma unroll
        for (int j = 0; j < RUN; j += 4) {
            if (ALIGNED && first + j + 3 < columns) {
                load_four(&held[n][j], data + first + j);
            } else {
                for (int k = j; k < j + 4; k++) {
                    held[n][k] = first + k < columns ? data[first + k] : 0.0f;
                }
            }
        }
    }
}

// The highest key of a run of which `count` scores are seen, 0 if none is.
__device__ inline unsigned highest_of(const float (&run)[RUN], int count) {
    float most = run[0];
#pragma unroll
    for (int j = 1; j < RUN; j++) most = higher(most, j < count ? run[j] : run[0]);
    return count > 0 ? order(most) : 0;
}

// The floor of a block: so many of its runs reach it that the block's part of the `top_k`, were they
// dealt out by chance, would by five deviations.
__device__ inline unsigned share_floor(const unsigned (&highest)[RUNS], int top_k, Shared &shared) {
    const float part = (float)top_k / SHARES;
    const int need = (int)(part + 5.0f * sqrtf(part)) + 4;
    unsigned best[1] = {};
    for (const unsigned key : highest) best[0] = max(best[0], key);
    // As many runs as there are threads with one reach the least of their best.
    if (__syncthreads_count(best[0] > 0) < need) return 1;
    const Range range = find_range(best, shared.ranges);
    return narrow(highest, need, need + need / 2, range, shared.bins, shared.scratch).key;
}

// Hand in what reaches a floor, and return how much that is; of more than SLOTS, anything. Threads
// name the runs that reach it, then eight look at each.
__device__ inline int hand_in(const unsigned (&highest)[RUNS], unsigned floor, const float *data,
                              int count, Row &row, Shared &shared) {
    __syncthreads();
    if (threadIdx.x == 0) shared.found = shared.base = 0;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < RUNS; n++) {
        if (highest[n] < floor) continue;
        shared.keys[atomicAdd(&shared.base, 1)] = n * THREADS + threadIdx.x;
    }
    __syncthreads();
    const int all = shared.base * RUN;
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += THREADS) {
        const int column = run_place(shared.keys[i / RUN]) + i % RUN;
        const unsigned key = column < count ? order(data[column]) : 0;
        if (key < floor) continue;
        const int slot = atomicAdd(&shared.found, 1);
        if (slot < SLOTS) row.candidates[slot * SHARES + blockIdx.x] = make_uint2(key, column);
    }
    __syncthreads();
    return shared.found;
}

// A floor that no more than SLOTS keys of the block reach, if not too many are equal; of those that
// reach a lower one there are more.
__device__ inline unsigned higher_floor(unsigned floor, const float *data, int count,
                                        Shared &shared) {
    unsigned keys[RUNS * RUN];
#pragma unroll
    for (int i = 0; i < RUNS * RUN; i++) {
        const int column = run_place(i / RUN * THREADS + threadIdx.x) + i % RUN;
        keys[i] = column < count ? order(data[column]) : 0;
    }
    return narrow(keys, SLOTS / 2, SLOTS, {floor, ALL}, shared.bins, shared.scratch).key;
}

// Count one more: what the block wrote before is seen by whoever counts later and reads past L1.
__device__ inline int count_on(int *number) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(number)
                 : "memory");
    return before;
}

// Say that a block of a row has handed in all; return whether it is the last of them.
__device__ inline bool is_last_share(int *arrived, int *shared) {
    __syncthreads();
    if (threadIdx.x == 0) *shared = count_on(arrived) == SHARES - 1;
    __syncthreads();
    return *shared;
}

// Write the chosen columns, `top_k` of them, in ascending order: by the bits of all columns, of which
// each thread's STRETCH are counted.
template <int EACH>
__device__ void emit_few(const bool (&chosen)[EACH], const unsigned (&columns)[EACH], int top_k,
                         const Target &out, Shared &shared) {
    unsigned *const before = shared.above;
    __shared__ unsigned list[FEW_TOP_K];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
    for (int i = threadIdx.x; i < FEW_COLUMNS / 32; i += THREADS) shared.bits[i] = 0;
    before[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared.found = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        if (!chosen[j]) continue;
        list[atomicAdd(&shared.found, 1)] = columns[j];
        atomicOr(&shared.bits[columns[j] / 32], 1u << columns[j] % 32);
        atomicAdd(&before[columns[j] / STRETCH], 1);
    }
    __syncthreads();
    const int mine = before[threadIdx.x];
    int until = mine;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(ALL, until, step);
        if (lane >= step) until += other;
    }
    if (lane == 31) shared.scratch.totals[0][warp] = until;
    __syncthreads();
    for (int w = 0; w < warp; w++) until += shared.scratch.totals[0][w];
    before[threadIdx.x] = until - mine;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < top_k; i += THREADS) {
        const unsigned column = list[i];
        const int page = out.page((int)column);  // comes while bits are counted
        int place = before[column / STRETCH];
        for (unsigned w = column / STRETCH * (STRETCH / 32); w < column / 32; w++) {
            place += __popc(shared.bits[w]);
        }
        place += __popc(shared.bits[column / 32] & ((1u << column % 32) - 1));
        out.put(place, (int)column, page);
    }
}

// Choose among what all blocks of a row have handed in. False if one had more than its slots, or
// too little reaches the highest floor.
__device__ inline bool choose_few(const Row &row, int top_k, int count, const Target &out,
                                  Shared &shared) {
    constexpr int EACH = CAPACITY / THREADS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint2 share = __ldcg(&row.shares[lane % SHARES]);
    unsigned keys[EACH], columns[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const uint2 one = __ldcg(&row.candidates[j * THREADS + threadIdx.x]);
        keys[j] = one.x;
        columns[j] = one.y;
    }
    const unsigned floor = __reduce_max_sync(ALL, share.y);
    int mine = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        // A slot is SHARES candidates wide: this lane's are all of its share.
        const unsigned slot = (j * THREADS + threadIdx.x) / SHARES;
        if (slot >= share.x || keys[j] < floor) keys[j] = 0;
        mine += keys[j] != 0;
    }
    mine = __reduce_add_sync(ALL, mine);
    if (lane == 0) shared.scratch.totals[1][warp] = mine;
    const Range range = find_range(keys, shared.ranges);
    const int reached = __reduce_add_sync(ALL, shared.scratch.totals[1][lane % WARPS]) / 2;
    if (reached < top_k || __reduce_max_sync(ALL, share.x) > SLOTS) return false;
    const Narrow border = narrow(keys, top_k, top_k, range, shared.bins, shared.scratch);
    Narrow first = {0, 0, 0};
    if (border.count > top_k) {
        unsigned equal[EACH];
        for (int j = 0; j < EACH; j++) equal[j] = keys[j] == border.key ? ~columns[j] : 0;
        const int need = top_k - border.above;
        first = narrow(equal, need, need, {~(unsigned)(count - 1), ALL}, shared.bins,
                       shared.scratch);
    }
    bool chosen[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        chosen[j] = keys[j] > border.key || (keys[j] == border.key && ~columns[j] >= first.key);
    }
    emit_few(chosen, columns, top_k, out, shared);
    return true;
}

template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 1) few_rows(Scores scores, Row *rows, Target target) {
    __shared__ Shared shared;
    const int nth = blockIdx.y, share = blockIdx.x;
    const float *const data = scores.data + nth * scores.stride;
    float held[RUNS][RUN];
    take_turn();
    load_runs<ALIGNED>(held, data, scores.columns);
    const int count = seen(scores, nth);
    const Target out = target.of(nth);
    if (!share) out.end_at(min(count, scores.top_k));
    if (count <= SHORT_ROW) {
        if (!share) select_held<ALIGNED>(scores, nth, count, out, shared);
        return;
    }
    unsigned highest[RUNS];
#pragma unroll
    for (int n = 0; n < RUNS; n++) {
        highest[n] = highest_of(held[n], count - run_place(n * THREADS + threadIdx.x));
    }
    Row &row = rows[nth];
    unsigned floor = share_floor(highest, scores.top_k, shared);
    int found = hand_in(highest, floor, data, count, row, shared);
    if (found > SLOTS) {
        // High scores are neighbours here. All that are equal may still be too many.
        floor = higher_floor(floor, data, count, shared);
        found = hand_in(highest, floor, data, count, row, shared);
    }
    if (threadIdx.x == 0) row.shares[share] = make_uint2(found, floor);
    if (!is_last_share(&row.arrived, &shared.base)) return;
    if (threadIdx.x == 0) row.arrived = 0;
    if (choose_few(row, scores.top_k, count, out, shared)) return;
    __syncthreads();
    select_all([=](int i) { return order(data[i]); }, count, scores.top_k, out, shared.bins,
               shared.scratch);
}
