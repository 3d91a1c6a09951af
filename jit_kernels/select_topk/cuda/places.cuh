// Writes chosen columns in ascending order, which the block's threads hold in any: by the bits of
// all columns of a window, of which a bucket's are counted together.
#pragma once

#include "cut.cuh"

constexpr int BUCKET = 256, WINDOW = 2 * THREADS * BUCKET;  // columns; two buckets a thread
constexpr int MARKS = WINDOW / 128;                         // bits, by fours of words

__device__ inline void clear_places(uint4 *marks, int2 *buckets) {
    for (int i = threadIdx.x; i < MARKS; i += THREADS) marks[i] = make_uint4(0, 0, 0, 0);
    buckets[threadIdx.x] = make_int2(0, 0);
}

// How many bits of four words lie below `bit`, which may lie beyond them on either side.
__device__ inline int bits_below(uint4 four, int bit) {
    const unsigned words[4] = {four.x, four.y, four.z, four.w};
    int below = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        const int left = bit - 32 * w;
        below += __popc(words[w] & (left >= 32 ? ALL : left > 0 ? (1u << left) - 1 : 0));
    }
    return below;
}

// Write the chosen columns, all of which lie in the window that begins at `window`, in ascending
// order from place `from` on: of a thread's EACH those that `chosen(i)`, their columns and pages.
// Marks and buckets are clear, and a barrier lies between; `totals` is memory for `sum_before`.
template <int EACH, class Chosen, class Column, class Page>
__device__ void place_chosen(Chosen chosen, Column columns, Page pages, unsigned window, int from,
                             const Target &out, uint4 *marks, int2 *buckets, int *totals) {
    unsigned *const words = reinterpret_cast<unsigned *>(marks);
    int *const counts = reinterpret_cast<int *>(buckets);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (!chosen(i)) continue;
        const unsigned column = columns(i) - window;
        atomicOr(&words[column / 32], 1u << column % 32);
        atomicAdd(&counts[column / BUCKET], 1);
    }
    __syncthreads();
    const int2 two = buckets[threadIdx.x];
    const int before = from + sum_before(two.x + two.y, totals);
    buckets[threadIdx.x] = make_int2(before, before + two.x);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (!chosen(i)) continue;
        const unsigned column = columns(i) - window, bucket = column / BUCKET;
        const int bit = column % BUCKET;
        const int place = counts[bucket] + bits_below(marks[2 * bucket], bit) +
                          bits_below(marks[2 * bucket + 1], bit - 128);
        out.put(place, (int)columns(i), pages(i));
    }
}
