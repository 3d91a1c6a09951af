// The k-th highest of numbers that the threads of a block hold in registers, and what is chosen in
// ascending order. Comparisons are of `order(x)`, which makes all NaN the highest numbers and both
// zeros equal, as a sort of tensors does.
#pragma once

#include "target.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;

// Nothing has the order 0: it stands for no number.
__device__ inline unsigned order(float x) {
    unsigned bits = __float_as_uint(x);
    if (x != x) return ALL;
    if (x == 0.0f) bits = 0;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The number of that order; NaN above infinity.
__device__ inline float number(unsigned order) {
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// How many of the block's keys are at least `border`.
template <int EACH>
__device__ int count_from(const unsigned (&keys)[EACH], unsigned border) {
    int mine = 0, all = 0;
    for (const unsigned key : keys) mine += key >= border;
    for (int bit = 1; bit <= EACH; bit *= 2) all += bit * __syncthreads_count(mine & bit);
    return all;
}

// The least and the highest key of a block, without those that are 0, in all threads.
struct Range {
    unsigned least, most;
};

template <int EACH>
__device__ Range find_range(const unsigned (&keys)[EACH], Range *warps) {
    Range mine = {ALL, 0};
    for (const unsigned key : keys) {
        if (key) mine.least = min(mine.least, key);
        mine.most = max(mine.most, key);
    }
    mine.least = __reduce_min_sync(ALL, mine.least);
    mine.most = __reduce_max_sync(ALL, mine.most);
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    const Range other = warps[threadIdx.x % WARPS];
    return {__reduce_min_sync(ALL, other.least), __reduce_max_sync(ALL, other.most)};
}

// A border, and how many keys are at least it.
struct Border {
    unsigned key;
    int count;
};

// Halve the range until from `need` to `most` keys are at least the border; or until it is the
// `need`-th highest key, with more keys like it. At least `need` keys are not 0.
template <int EACH>
__device__ Border bisect(const unsigned (&keys)[EACH], int need, int most, Range *warps) {
    const Range range = find_range(keys, warps);
    unsigned low = range.least;
    unsigned long long high = range.most + 1ull;  // fewer than `need` keys are at least it
    Border border = {low, count_from(keys, low)};
    while (border.count > most && high - low > 1) {
        const unsigned middle = low + (unsigned)((high - low) / 2);
        const int count = count_from(keys, middle);
        if (count >= need) {
            low = middle;
            border = {middle, count};
        } else {
            high = middle;
        }
    }
    return border;
}

// Write the columns whose bits are set, in ascending order, from place `from` on: of `above` all,
// of `equal` the first `need`. A thread has WORDS words. Returns how many of both and of equal
// ones.
struct Written {
    int all, equal;
};

template <int WORDS>
__device__ inline Written emit_bits(const unsigned *above, const unsigned *equal, int window,
                                    int need, int *totals, const Target &out, int from) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = threadIdx.x * WORDS;
    int mine = 0;
    for (int i = 0; i < WORDS; i++) mine += __popc(above[first + i]);
    if (equal) {
        for (int i = 0; i < WORDS; i++) mine += __popc(equal[first + i]) << 16;
    }
    int until = mine;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(ALL, until, step);
        if (lane >= step) until += other;
    }
    __syncthreads();
    if (lane == 31) totals[warp] = until;
    __syncthreads();
    int before = until - mine, all = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += totals[w];
        all += totals[w];
    }
    int seen = before >> 16, place = from + (before & 0xffff) + min(seen, need);
    for (int i = 0; i < WORDS; i++) {
        unsigned same = equal ? equal[first + i] : 0;
        for (unsigned bits = above[first + i] | same; bits; bits &= bits - 1) {
            const int bit = __ffs(bits) - 1;
            if (same >> bit & 1 && seen++ >= need) continue;
            out.put(place++, window + (first + i) * 32 + bit);
        }
    }
    return {(all & 0xffff) + min(all >> 16, need), min(all >> 16, need)};
}

// Write all `count` columns.
__device__ inline void take_all(int count, const Target &out) {
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += THREADS) out.put(i, i);
}
