// Top-k of rows: a short row by one block; a long one by many, in two launches.
//
// Long rows: the first launch counts the top bits of all scores, block by block; the last block of a
// row finds the bin of the k-th. The second collects what lies in that bin or above, far fewer than
// the row; the last block of a row chooses among them. Both read the scores once.
#pragma once

#include "radix.cuh"

constexpr int MAX_TOP_K = 2048;  // as the public function has it
constexpr int CAPACITY = 4096;  // what a row may collect; else one block goes through the row
constexpr int SHORT_ROW = 16384;

// What the blocks of a long row share. All but `top` and `candidates` is zero between calls.
struct Row {
    int bins[BINS];
    Found top;
    int counted, collected, arrived, unused[2];
    uint2 candidates[CAPACITY];  // order of the score, index
};

struct Scores {
    const float *data;
    long long stride;
    const long long *visible;
    int columns, top_k;
};

__device__ inline int seen(const Scores &scores, int row) {
    const long long visible = scores.visible[row];
    return visible < 0 ? 0 : visible < scores.columns ? (int)visible : scores.columns;
}

__global__ void __launch_bounds__(THREADS) short_rows(Scores scores, long long *out) {
    extern __shared__ unsigned keys[];
    __shared__ int bins[BINS];
    __shared__ Scratch scratch;
    const int row = blockIdx.x, count = seen(scores, row);
    out += (long long)row * scores.top_k;
    if (count <= scores.top_k) return take_all(count, scores.top_k, out);
    const float *data = scores.data + row * scores.stride;
    for (int i = threadIdx.x; i < count; i += THREADS) keys[i] = order(data[i]);
    __syncthreads();
    select_all([=](int i) { return keys[i]; }, count, scores.top_k, out, bins, scratch);
}

// Load a thread's share of a piece of 4 * THREADS * QUADS scores; what is not seen is left alone.
template <int QUADS, bool ALIGNED>
__device__ inline void load(float (&mine)[4 * QUADS], const float *data, int first, int count) {
    for (int q = 0; q < QUADS; q++) {
        const int at = first + (q * THREADS + threadIdx.x) * 4;
        if (ALIGNED && at + 3 < count) {
            const float4 four = *reinterpret_cast<const float4 *>(data + at);
            mine[4 * q] = four.x;
            mine[4 * q + 1] = four.y;
            mine[4 * q + 2] = four.z;
            mine[4 * q + 3] = four.w;
        } else {
            for (int j = 0; j < 4; j++) mine[4 * q + j] = at + j < count ? data[at + j] : 0.0f;
        }
    }
}

template <int QUADS>
__device__ inline int place(int first, int i) {
    return first + (i / 4 * THREADS + (int)threadIdx.x) * 4 + i % 4;
}

// Say that this block of a row is done; return in every thread whether it is the last of them.
__device__ inline bool is_last(int *arrived, int blocks, int *shared) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *shared = atomicAdd(arrived, 1) == blocks - 1;
    __syncthreads();
    if (*shared) __threadfence();
    return *shared;
}

template <int QUADS, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) count_bins(Scores scores, Row *rows) {
    constexpr int PIECE = 4 * THREADS * QUADS;
    __shared__ int bins[BINS];
    __shared__ Scratch scratch;
    __shared__ int last;
    cudaTriggerProgrammaticLaunchCompletion();
    const int count = seen(scores, blockIdx.y), first = blockIdx.x * PIECE;
    if (count <= scores.top_k || first >= count) return;
    Row &row = rows[blockIdx.y];
    float mine[4 * QUADS];
    load<QUADS, ALIGNED>(mine, scores.data + blockIdx.y * scores.stride, first, count);
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    __syncthreads();
    for (int i = 0; i < 4 * QUADS; i++) {
        if (place<QUADS>(first, i) < count) atomicAdd(&bins[order(mine[i]) >> (32 - TOP_BITS)], 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += THREADS) {
        if (bins[i]) atomicAdd(&row.bins[i], bins[i]);
    }
    if (!is_last(&row.counted, (count + PIECE - 1) / PIECE, &last)) return;
    constexpr int EACH = BINS / THREADS;
    int counts[EACH];
    for (int j = 0; j < EACH; j++) {
        int *bin = &row.bins[(THREADS - 1 - threadIdx.x) * EACH + EACH - 1 - j];
        counts[j] = __ldcg(bin);
        *bin = 0;
    }
    const Found top = find_bin<EACH>(counts, scores.top_k, scratch);
    if (threadIdx.x == 0) {
        row.top = top;
        row.counted = 0;
    }
}

// Choose among a row's candidates: all above the top bin, and the rest from it.
__device__ inline bool choose(const uint2 *candidates, int count, Found top, int top_k, int *bins,
                              int *list, long long *out, Scratch &scratch, int *chosen) {
    const auto key = [=](int i) { return candidates[i].x; };
    const Border border = find_border(key, count, top.bin, top_k - top.above, bins, scratch);
    if (border.equal > border.need) return false;
    int size = 1;
    while (size < top_k) size *= 2;
    if (threadIdx.x == 0) *chosen = 0;
    for (int i = top_k + threadIdx.x; i < size; i += THREADS) list[i] = 0x7fffffff;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        if (candidates[i].x >= border.key) list[atomicAdd(chosen, 1)] = candidates[i].y;
    }
    sort(list, size);
    for (int i = threadIdx.x; i < top_k; i += THREADS) out[i] = list[i];
    return true;
}

template <int QUADS, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) collect(Scores scores, Row *rows, long long *out) {
    constexpr int PIECE = 4 * THREADS * QUADS;
    __shared__ uint2 candidates[CAPACITY];
    __shared__ int bins[MAX_TOP_K];
    __shared__ Scratch scratch;
    __shared__ int found, base;
    // Backwards: what the first launch read last is still in the cache.
    const int nth = gridDim.y - 1 - blockIdx.y, first = (gridDim.x - 1 - blockIdx.x) * PIECE;
    const int count = seen(scores, nth);
    if (first >= count && first) return;
    const float *data = scores.data + nth * scores.stride;
    out += (long long)nth * scores.top_k;
    if (count <= scores.top_k) {
        if (!first) take_all(count, scores.top_k, out);
        return;
    }
    float mine[4 * QUADS];
    load<QUADS, ALIGNED>(mine, data, first, count);
    if (threadIdx.x == 0) found = 0;
    cudaGridDependencySynchronize();
    Row &row = rows[nth];
    const Found top = row.top;
    const auto score = [=](int i) { return order(data[i]); };
    if (top.above + top.inside > CAPACITY) {
        // Too many alike for a short list; `candidates` has room for all bins.
        if (!first) {
            select_all(score, count, scores.top_k, out, reinterpret_cast<int *>(candidates),
                       scratch);
        }
        return;
    }
    __syncthreads();
    for (int i = 0; i < 4 * QUADS; i++) {
        const int index = place<QUADS>(first, i);
        const unsigned key = order(mine[i]);
        if (index < count && (int)(key >> (32 - TOP_BITS)) >= top.bin) {
            candidates[atomicAdd(&found, 1)] = make_uint2(key, index);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && found) base = atomicAdd(&row.collected, found);
    __syncthreads();
    for (int i = threadIdx.x; i < found; i += THREADS) row.candidates[base + i] = candidates[i];
    if (!is_last(&row.arrived, (count + PIECE - 1) / PIECE, &base)) return;
    const int total = top.above + top.inside;
    for (int i = threadIdx.x; i < total; i += THREADS) candidates[i] = __ldcg(&row.candidates[i]);
    if (threadIdx.x == 0) row.collected = row.arrived = 0;
    __syncthreads();
    int *const list = bins;
    if (choose(candidates, total, top, scores.top_k, bins, list, out, scratch, &found)) return;
    // More scores equal to the last chosen one than places: the lower indices have it.
    const auto key = [&](int i) { return candidates[i].x; };
    const Border border =
        find_border(key, total, top.bin, scores.top_k - top.above, bins, scratch);
    emit(score, count, border, out, scratch);
}
