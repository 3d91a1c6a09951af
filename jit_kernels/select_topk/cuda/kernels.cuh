// Top-k of rows. What is chosen is found in two steps: a floor that few more than k scores reach,
// and among those the k-th. A short row is held by one block, and its floor is the k-th of the
// highest scores of parts of it. A long row is read once by many blocks: each finds the same floor,
// in the same sample, and collects what reaches it; the last block of the row chooses.
#pragma once

#include "places.cuh"
#include "radix.cuh"

constexpr int CAPACITY = 4096;  // what a row may collect; else one block goes through the row
constexpr int SHORT_ROW = 16384;
// A sample: parts of a row, spread over it, each of as many scores as a sector of the cache has.
constexpr int PART = 8, PARTS = 2 * THREADS;

// What the blocks of a long row share; the numbers are zero between calls.
struct Row {
    int collected, arrived;
    uint2 candidates[CAPACITY];  // order of the score, column
};

struct Scores {
    const float *data;
    long long stride;
    const void *visible;  // of long long, or of int where they are not wide
    bool wide;
    int columns, top_k;
};

struct Shared {
    union {
        uint2 list[CAPACITY];
        unsigned keys[CAPACITY];
        uint4 marks[MARKS];
        int bins[BINS];
    };
    union {
        struct {
            unsigned above[THREADS], equal[THREADS];
        };
        int2 buckets[THREADS];
    };
    Counters counters;
    Range ranges[WARPS];
    Scratch scratch;
    int found, base;
};

__device__ inline int seen(const Scores &scores, int row) {
    const long long visible = scores.wide ? static_cast<const long long *>(scores.visible)[row]
                                          : static_cast<const int *>(scores.visible)[row];
    return visible < 0 ? 0 : visible < scores.columns ? (int)visible : scores.columns;
}

// Load a thread's share of 4 * THREADS * QUADS scores; of what is not seen, NaN.
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
            for (int j = 0; j < 4; j++) {
                mine[4 * q + j] = at + j < count ? data[at + j] : __uint_as_float(ALL);
            }
        }
    }
}

template <int QUADS>
__device__ inline int place(int first, int i) {
    return first + (i / 4 * THREADS + (int)threadIdx.x) * 4 + i % 4;
}

// The floor of a row of which the block holds all keys, in quads: at least `need` keys reach it.
template <int QUADS>
__device__ unsigned find_floor(const unsigned (&keys)[4 * QUADS], int need, Shared &shared) {
    unsigned highest[QUADS];
    for (int q = 0; q < QUADS; q++) {
        highest[q] = max(max(keys[4 * q], keys[4 * q + 1]), max(keys[4 * q + 2], keys[4 * q + 3]));
    }
    Border floor;
    if (need <= THREADS) {
        unsigned halves[2] = {};
        for (int q = 0; q < QUADS; q++) halves[q % 2] = max(halves[q % 2], highest[q]);
        floor = bisect(halves, need, need + need / 4, shared.ranges);
    } else {
        floor = bisect(highest, need, need + need / 4, shared.ranges);
    }
    return floor.count < need ? 1 : floor.key;
}

// The border of the `need` highest keys of a block: among those that reach a floor, if they are few.
template <int QUADS>
__device__ Border find_border(const unsigned (&keys)[4 * QUADS], int need, Shared &shared) {
    if constexpr (QUADS > 2) {
        const unsigned floor = find_floor<QUADS>(keys, need, shared);
        const int lane = threadIdx.x % 32;
        int mine = 0;
        for (const unsigned key : keys) mine += key >= floor;
        int until = mine;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(ALL, until, step);
            if (lane >= step) until += other;
        }
        if (threadIdx.x == 0) shared.found = 0;
        __syncthreads();
        int at = lane == 31 ? atomicAdd(&shared.found, until) : 0;
        at = __shfl_sync(ALL, at, 31) + until - mine;
        __syncthreads();
        const int found = shared.found;
        if (found <= 4 * THREADS) {
            for (const unsigned key : keys) {
                if (key >= floor) shared.keys[at++] = key;
            }
            __syncthreads();
            unsigned few[4];
            for (int j = 0; j < 4; j++) {
                const int i = j * THREADS + threadIdx.x;
                few[j] = i < found ? shared.keys[i] : 0;
            }
            return bisect(few, need, need, shared.ranges);
        }
    }
    return bisect(keys, need, need, shared.ranges);
}

// Choose from a row of more than `top_k` and no more than 4 * THREADS * QUADS scores.
template <int QUADS, bool ALIGNED>
__device__ void select_short(const float *data, int count, int top_k, const Target &out,
                             Shared &shared) {
    unsigned keys[4 * QUADS];
    {
        float scores[4 * QUADS];
        load<QUADS, ALIGNED>(scores, data, 0, count);
        for (int i = 0; i < 4 * QUADS; i++) {
            keys[i] = place<QUADS>(0, i) < count ? order(scores[i]) : 0;
        }
    }
    const Border border = find_border<QUADS>(keys, top_k, shared);
    shared.above[threadIdx.x] = shared.equal[threadIdx.x] = 0;
    const int above = border.count > top_k && border.key < ALL ? count_from(keys, border.key + 1)
                                                               : 0;
    __syncthreads();
    for (int q = 0; q < QUADS; q++) {
        unsigned higher = 0, same = 0;
        for (int j = 0; j < 4; j++) {
            higher |= (unsigned)(keys[4 * q + j] > border.key) << j;
            same |= (unsigned)(keys[4 * q + j] == border.key) << j;
        }
        const int word = place<QUADS>(0, 4 * q) / 32, shift = threadIdx.x % 8 * 4;
        if (higher) atomicOr(&shared.above[word], higher << shift);
        if (same) atomicOr(&shared.equal[word], same << shift);
    }
    __syncthreads();
    const int need = border.count > top_k ? top_k - above : top_k;
    emit_bits<1>(shared.above, shared.equal, 0, need, shared.scratch.totals[0], out, 0);
}

// Choose from a row that one block holds.
template <bool ALIGNED>
__device__ void select_held(const Scores &scores, int row, int count, const Target &out,
                            Shared &shared) {
    const float *const data = scores.data + row * scores.stride;
    if (count <= scores.top_k) {
        take_all(count, out);
    } else if (count <= 4 * THREADS) {
        select_short<1, ALIGNED>(data, count, scores.top_k, out, shared);
    } else if (count <= 8 * THREADS) {
        select_short<2, ALIGNED>(data, count, scores.top_k, out, shared);
    } else {
        select_short<8, ALIGNED>(data, count, scores.top_k, out, shared);
    }
}

template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 2) short_rows(Scores scores, Target target) {
    __shared__ Shared shared;
    const int row = blockIdx.x, count = seen(scores, row);
    const Target out = target.of(row);
    out.end_at(min(count, scores.top_k));
    select_held<ALIGNED>(scores, row, count, out, shared);
}

// The floor of a long row by a sample: most likely a little more than `top_k` scores reach it. Of
// the highest scores of all parts so many lie above it that the sample's do by five deviations.
template <bool ALIGNED>
__device__ unsigned sample_floor(const float *data, int count, int top_k, Shared &shared) {
    unsigned highest[2] = {};
    for (int i = 0; i < 2; i++) {
        const int part = i * THREADS + threadIdx.x;
        const int first = (int)((long long)part * (count / PART - 1) / (PARTS - 1)) * PART;
        float scores[PART];
        if (ALIGNED) {
            for (int j = 0; j < PART; j += 4) {
                *reinterpret_cast<float4 *>(scores + j) =
                    *reinterpret_cast<const float4 *>(data + first + j);
            }
        } else {
            for (int j = 0; j < PART; j++) scores[j] = data[first + j];
        }
        for (const float score : scores) highest[i] = max(highest[i], order(score));
    }
    const float share = (float)top_k * (PART * PARTS) / count;
    const int need = (int)(share + 5.0f * sqrtf(share)) + 4;
    if (need > PARTS / 2) return 1;
    const Spread spread = spread_of(highest, shared.counters);
    const auto key = [&](int i) { return highest[i]; };
    return close_in<2>(key, need, need + need / 4, 0, spread.least, spread.most, shared.counters)
        .low;
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

// Choose among a row's candidates.
template <int EACH>
__device__ void choose(const Row &row, int total, int top_k, int count, const Target &out,
                       Shared &shared) {
    unsigned keys[EACH], columns[EACH];
    int pages[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = j * THREADS + threadIdx.x;
        const uint2 one = i < total ? __ldcg(&row.candidates[i]) : make_uint2(0, 0);
        keys[j] = one.x;
        columns[j] = one.y;
        pages[j] = i < total ? out.page((int)one.y) : 0;
    }
    const Spread spread = spread_of(keys, shared.counters);
    const auto key = [&](int j) { return keys[j]; };
    const auto column = [&](int j) { return columns[j]; };
    const auto page = [&](int j) { return pages[j]; };
    const Cut cut = find_cut<EACH>(key, column, count, top_k, spread.least, spread.most,
                                   shared.counters);
#pragma unroll 1
    for (unsigned window = 0; window < count; window += WINDOW) {
        bool taken[EACH];
        int earlier = 0, from = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            taken[j] = cut.takes(keys[j], columns[j]);
            earlier += taken[j] && columns[j] < window;
            taken[j] = taken[j] && columns[j] - window < WINDOW;
        }
        for (int bit = 1; bit <= EACH; bit *= 2) from += bit * __syncthreads_count(earlier & bit);
        clear_places(shared.marks, shared.buckets);
        __syncthreads();
        const auto chosen = [&](int j) { return taken[j]; };
        place_chosen<EACH>(chosen, column, page, window, from, out, shared.marks, shared.buckets,
                           shared.counters.totals);
    }
}

// What the last block of a row does.
__device__ inline void finish(Row &row, const Scores &scores, const float *data, int count,
                              const Target &out, Shared &shared) {
    const int total = __ldcg(&row.collected);
    __syncthreads();
    if (threadIdx.x == 0) row.collected = row.arrived = 0;
    const auto score = [=](int i) { return order(data[i]); };
    if (total < scores.top_k || total > CAPACITY) {
        select_all(score, count, scores.top_k, out, shared.bins, shared.scratch);
        return;
    }
    if (total <= 4 * THREADS) {
        choose<4>(row, total, scores.top_k, count, out, shared);
    } else {
        choose<8>(row, total, scores.top_k, count, out, shared);
    }
}

// Go through one of the row's pieces of `piece` scores each, 4 * THREADS * QUADS at a time.
template <int QUADS, bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 2)
    long_rows(Scores scores, Row *rows, int piece, Target target) {
    constexpr int STEP = 4 * THREADS * QUADS;
    __shared__ Shared shared;
    const int nth = blockIdx.y, count = seen(scores, nth), start = blockIdx.x * piece;
    const Target out = target.of(nth);
    if (!start) out.end_at(min(count, scores.top_k));
    if (count <= SHORT_ROW) {
        if (!start) select_held<ALIGNED>(scores, nth, count, out, shared);
        return;
    }
    if (start >= count) return;
    const float *const data = scores.data + nth * scores.stride;
    const int end = min(start + piece, count);
    float mine[4 * QUADS], next[4 * QUADS];
    load<QUADS, ALIGNED>(mine, data, start, end);
    if (threadIdx.x == 0) shared.found = 0;
    clear(shared.counters);
    const float floor = number(sample_floor<ALIGNED>(data, count, scores.top_k, shared));
    __syncthreads();
    for (int first = start; first < end; first += STEP) {
        load<QUADS, ALIGNED>(next, data, first + STEP, end);
        for (int i = 0; i < 4 * QUADS; i++) {
            // All NaN reach any floor; those that stand for nothing are told by their place.
            if (mine[i] < floor || place<QUADS>(first, i) >= end) continue;
            if (*(volatile int *)&shared.found > CAPACITY) continue;
            const int at = atomicAdd(&shared.found, 1);
            const uint2 one = make_uint2(order(mine[i]), place<QUADS>(first, i));
            if (at < CAPACITY) shared.list[at] = one;
        }
        for (int i = 0; i < 4 * QUADS; i++) mine[i] = next[i];
    }
    __syncthreads();
    Row &row = rows[nth];
    const int found = shared.found;
    if (threadIdx.x == 0 && found) shared.base = atomicAdd(&row.collected, found);
    __syncthreads();
    for (int i = threadIdx.x; i < found && shared.base + i < CAPACITY; i += THREADS) {
        row.candidates[shared.base + i] = shared.list[i];
    }
    if (!is_last(&row.arrived, (count + piece - 1) / piece, &shared.base)) return;
    finish(row, scores, data, count, out, shared);
}
