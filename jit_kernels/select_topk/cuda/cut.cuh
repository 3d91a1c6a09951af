// Which of the keys of a block are chosen, by counting them in bins that narrow down on the last
// chosen one. Some barriers whatever the keys: each count tells apart 2,048 parts of the range in
// which that key lies, and of what is left in one part each is compared with each.
// A thread has EACH keys, in registers.
#pragma once

#include "bisect.cuh"

constexpr int CUT_BITS = 11, CUT_BINS = 1 << CUT_BITS;
constexpr int RANKED = THREADS / 4;  // so many are compared with each other

// The last that is chosen: higher keys are, and equal ones up to the column.
struct Cut {
    unsigned key, column;

    __device__ bool takes(unsigned other, unsigned at) const {
        return other > key || (other == key && at <= column);
    }
};

// Keys from `low` on as far as `span`: so many, and so many that are higher.
struct Part {
    unsigned low, span;
    int above, inside;
};

// How keys that are not 0 spread.
struct Spread {
    unsigned least, most;
    int count;
};

// What the block shares.
struct Counters {
    alignas(16) int bins[CUT_BINS];  // 0 between counts
    uint2 ranked[RANKED];            // key, column; 0 where there is none
    Spread warps[WARPS];
    int totals[WARPS], gathered;
    int bin, above, inside;
    Cut cut;
};

static_assert(CUT_BINS == 4 * THREADS && WARPS <= 32 && RANKED % 32 == 0);

// Make ready; a barrier must follow.
__device__ inline void clear(Counters &counters) {
    reinterpret_cast<int4 *>(counters.bins)[threadIdx.x] = make_int4(0, 0, 0, 0);
    if (threadIdx.x < RANKED) counters.ranked[threadIdx.x] = make_uint2(0, 0);
    if (threadIdx.x == 0) counters.gathered = 0;
}

// The sum of what the threads before this one have; a barrier lies within. `totals` is free again
// after the next one.
__device__ inline int sum_before(int mine, int *totals) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int until = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(ALL, until, step);
        if (lane >= step) until += other;
    }
    if (lane == 31) totals[warp] = until;
    __syncthreads();
    return until - mine + (int)__reduce_add_sync(ALL, lane < warp ? (unsigned)totals[lane] : 0u);
}

// The spread of the block's keys; a barrier lies within, and must before this is called again.
template <int EACH>
__device__ Spread spread_of(const unsigned (&keys)[EACH], Counters &counters) {
    const int lane = threadIdx.x % 32;
    Spread mine = {ALL, 0, 0};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        mine.least = min(mine.least, keys[i] ? keys[i] : ALL);
        mine.most = max(mine.most, keys[i]);
        mine.count += keys[i] != 0;
    }
    mine.least = __reduce_min_sync(ALL, mine.least);
    mine.most = __reduce_max_sync(ALL, mine.most);
    mine.count = (int)__reduce_add_sync(ALL, (unsigned)mine.count);
    if (lane == 0) counters.warps[threadIdx.x / 32] = mine;
    __syncthreads();
    const Spread other = counters.warps[lane % WARPS];
    const unsigned count = lane < WARPS ? (unsigned)other.count : 0u;
    return {__reduce_min_sync(ALL, other.least), __reduce_max_sync(ALL, other.most),
            (int)__reduce_add_sync(ALL, count)};
}

// Find the bin in which the count from the highest bin down reaches `need`; there are enough. The
// bins are 0 again. Two barriers lie within.
__device__ inline void find_crossing(int need, Counters &counters) {
    const int first = CUT_BINS - 4 - 4 * (int)threadIdx.x;
    int4 *const bins = reinterpret_cast<int4 *>(counters.bins + first);
    const int4 four = *bins;
    *bins = make_int4(0, 0, 0, 0);
    const int mine[4] = {four.w, four.z, four.y, four.x};
    int above = sum_before(four.x + four.y + four.z + four.w, counters.totals);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (above < need && need <= above + mine[j]) {
            counters.bin = first + 3 - j;
            counters.above = above;
            counters.inside = mine[j];
        }
        above += mine[j];
    }
    __syncthreads();
}

// Narrow the range from `low` to `high` of a thread's keys, `key(i)`, to the part in which the
// `need`-th highest key of it lies: until no more than `most` keys reach the part, or `few` are in
// it, or all in it are equal.
template <int EACH, class Key>
__device__ Part close_in(Key key, int need, int most, int few, unsigned low, unsigned high,
                         Counters &counters) {
    unsigned span = high - low;
    int above = 0;
    while (true) {
        const int shift = max(0, 32 - CUT_BITS - __clz((int)span));
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            // What is below the range wraps around, and lies far above it.
            const unsigned above_low = key(i) - low;
            if (above_low <= span) atomicAdd(&counters.bins[above_low >> shift], 1);
        }
        __syncthreads();
        find_crossing(need - above, counters);
        low += (unsigned)counters.bin << shift;
        span = min((1u << shift) - 1, high - low);
        above += counters.above;
        const int inside = counters.inside;
        if (above + inside <= most || inside <= few || !shift) return {low, span, above, inside};
    }
}

// The cut of a part of at most RANKED keys, `need` being left to choose from it. Once in a kernel.
// Four threads compare one key; barriers lie before and after that.
template <int EACH, class Key, class Column>
__device__ Cut rank_part(Key key, Column column, Part part, int need, Counters &counters) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (key(i) - part.low <= part.span) {
            counters.ranked[atomicAdd(&counters.gathered, 1)] = make_uint2(key(i), column(i));
        }
    }
    __syncthreads();
    const int nth = threadIdx.x / 4;
    const uint2 mine = counters.ranked[nth];
    int better = 0;
#pragma unroll 1
    for (int first = 0; first < part.inside; first += 32) {
#pragma unroll 8
        for (int j = 0; j < 32; j += 4) {
            const uint2 other = counters.ranked[first + j + threadIdx.x % 4];
            better += other.x > mine.x || (other.x == mine.x && other.y < mine.y);
        }
    }
    better += __shfl_xor_sync(ALL, better, 1);
    better += __shfl_xor_sync(ALL, better, 2);
    if (nth < part.inside && threadIdx.x % 4 == 0 && better == need - 1) {
        counters.cut = {mine.x, mine.y};
    }
    __syncthreads();
    return counters.cut;
}

// The cut that takes `need` of the keys in the range from `low` to `high`, all higher ones being in
// it; there are as many. `column(i)` is that of `key(i)`, below `columns`. Once in a kernel.
template <int EACH, class Key, class Column>
__device__ Cut find_cut(Key key, Column column, int columns, int need, unsigned low, unsigned high,
                        Counters &counters) {
    const Part part = close_in<EACH>(key, need, need, RANKED, low, high, counters);
    if (part.above + part.inside == need) return {part.low, ALL};
    need -= part.above;
    if (part.inside <= RANKED) return rank_part<EACH>(key, column, part, need, counters);
    // So many are equal: of these the first ones.
    const auto equal = [&](int i) { return key(i) == part.low ? ~(unsigned)column(i) : 0u; };
    const unsigned last = ~(unsigned)(columns - 1);
    const Part first = close_in<EACH>(equal, need, need, 1, last, ALL, counters);
    return {part.low, ~first.low};
}
