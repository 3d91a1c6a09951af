// The k-th highest of any number of keys by their bits, and what is chosen in ascending order: what
// one block does that reads them again and again, where too many are alike to be held.
#pragma once

#include "bisect.cuh"

// The first pass tells numbers apart by sign, exponent and three bits of mantissa.
constexpr int TOP_BITS = 12, LOW_BITS = 10;
constexpr int BINS = 1 << TOP_BITS;

// What a search in a histogram found: the bin, how many lie above it, how many in it.
struct Found {
    int bin, above, inside;
};

// Memory that the functions below share: one of these a block.
struct Scratch {
    int totals[2][WARPS];
    Found found;
};

// Find the bin in which the count from the highest bin down reaches `need`; there are enough.
// `mine[j]` is the count of bin `bins - 1 - threadIdx.x * EACH - j`.
template <int EACH>
__device__ Found find_bin(const int (&mine)[EACH], int need, Scratch &scratch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = 0;
    for (int j = 0; j < EACH; j++) sum += mine[j];
    int until = sum;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(ALL, until, step);
        if (lane >= step) until += other;
    }
    if (lane == 31) scratch.totals[0][warp] = until;
    __syncthreads();
    for (int w = 0; w < warp; w++) until += scratch.totals[0][w];
    int above = until - sum;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        if (above < need && need <= above + mine[j]) {
            scratch.found = {EACH * (THREADS - 1 - (int)threadIdx.x) + EACH - 1 - j, above,
                             mine[j]};
        }
        above += mine[j];
    }
    __syncthreads();
    return scratch.found;
}

// Count, of the keys that begin with `prefix`, the next BITS bits above `shift`, and find the bin
// of the `need`-th. `key(i)` gives the i-th of `count` keys.
template <int BITS, class Key>
__device__ Found radix_pass(Key key, int count, unsigned prefix, int shift, int need, int *bins,
                            Scratch &scratch) {
    constexpr int EACH = (1 << BITS) / THREADS;
    for (int i = threadIdx.x; i < 1 << BITS; i += THREADS) bins[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const unsigned long long wide = key(i);
        if (wide >> (shift + BITS) == prefix) {
            atomicAdd(&bins[(wide >> shift) & ((1 << BITS) - 1)], 1);
        }
    }
    __syncthreads();
    int mine[EACH];
    for (int j = 0; j < EACH; j++) mine[j] = bins[(THREADS - 1 - threadIdx.x) * EACH + EACH - 1 - j];
    return find_bin<EACH>(mine, need, scratch);
}

// The least key that is chosen, and how many of the keys equal to it are.
struct Edge {
    unsigned key;
    int need;
};

// Go on from the top bits, known to be `prefix`, to the whole key of the `need`-th that has them.
template <class Key>
__device__ Edge find_edge(Key key, int count, unsigned prefix, int need, int *bins,
                              Scratch &scratch) {
    Found found = radix_pass<LOW_BITS>(key, count, prefix, LOW_BITS, need, bins, scratch);
    need -= found.above;
    prefix = prefix << LOW_BITS | found.bin;
    found = radix_pass<LOW_BITS>(key, count, prefix, 0, need, bins, scratch);
    return {prefix << LOW_BITS | found.bin, need - found.above};
}

// Write the indices of all keys above the edge, and of the first `need` equal to it, ascending.
// Each warp takes a stretch of the keys: it counts, hears of those before it, and writes.
template <class Key>
__device__ void emit(Key key, int count, Edge edge, const Target &out, Scratch &scratch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int stretch = (count + THREADS - 1) / THREADS * 32;
    const int first = min(warp * stretch, count), last = min(first + stretch, count);
    int above = 0, equal = 0;
    for (int base = first; base < last; base += 32) {
        const unsigned mine = base + lane < last ? key(base + lane) : 0;
        const bool live = base + lane < last;
        above += __popc(__ballot_sync(ALL, live && mine > edge.key));
        equal += __popc(__ballot_sync(ALL, live && mine == edge.key));
    }
    if (lane == 0) {
        scratch.totals[0][warp] = above;
        scratch.totals[1][warp] = equal;
    }
    __syncthreads();
    above = equal = 0;
    for (int w = 0; w < warp; w++) {
        above += scratch.totals[0][w];
        equal += scratch.totals[1][w];
    }
    const unsigned before = (1u << lane) - 1;
    for (int base = first; base < last; base += 32) {
        const bool live = base + lane < last;
        const unsigned mine = live ? key(base + lane) : 0;
        const unsigned higher = __ballot_sync(ALL, live && mine > edge.key);
        const unsigned same = __ballot_sync(ALL, live && mine == edge.key);
        const int equals = equal + __popc(same & before);
        const int place = above + __popc(higher & before) + min(equals, edge.need);
        if (higher >> lane & 1 || (same >> lane & 1 && equals < edge.need)) {
            out.put(place, base + lane);
        }
        above += __popc(higher);
        equal += __popc(same);
    }
}

// Choose `top_k` of more than as many keys.
template <class Key>
__device__ void select_all(Key key, int count, int top_k, const Target &out, int *bins,
                           Scratch &scratch) {
    const Found top = radix_pass<TOP_BITS>(key, count, 0, 32 - TOP_BITS, top_k, bins, scratch);
    emit(key, count, find_edge(key, count, top.bin, top_k - top.above, bins, scratch), out,
         scratch);
}
