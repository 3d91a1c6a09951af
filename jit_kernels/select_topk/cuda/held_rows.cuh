// Top-k of rows that one block holds in registers, HELD scores a thread: the cut is found by
// counting, and the bits of what it takes say where each goes. More scores a thread spill.
#pragma once

#include "cut.cuh"
#include "device/order.cuh"
#include "kernels.cuh"

constexpr int HELD = 8;

struct Held {
    Counters counters;
    unsigned words[HELD * WARPS];
};

// Load one number at this place of the program: the compiler must not wait for anything else first.
__device__ inline float load_early(const float *from) {
    float one;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(one) : "l"(from) : "memory");
    return one;
}

// The column of a thread's i-th score: 32 neighbours are a warp's, and a word of bits.
__device__ inline int held_column(int i) { return i * THREADS + (int)threadIdx.x; }

// Write what the bits of all scores say, in ascending order: each goes after those of earlier words
// and the lower bits of its own. Each warp adds up all words for itself.
__device__ inline void write_words(const unsigned (&words)[HELD], const int (&pages)[HELD],
                                 const Target &out, const Held &held) {
    constexpr int MINE = HELD * WARPS / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int all = 0, earlier = 0;
#pragma unroll
    for (int j = 0; j < MINE; j++) {
        const int bits = __popc(held.words[lane * MINE + j]);
        all += bits;
        if (j < warp % MINE) earlier += bits;
    }
    int until = all;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(ALL, until, step);
        if (lane >= step) until += other;
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int before = __shfl_sync(ALL, until - all + earlier, (i * WARPS + warp) / MINE);
        const int place = before + __popc(words[i] & ((1u << lane) - 1));
        if (words[i] >> lane & 1) out.put(place, held_column(i), pages[i]);
    }
}

// Choose from a row of `count` scores, of which a thread has loaded its own. The counters are
// clear.
__device__ inline void choose_held(const float (&scores)[HELD], int count, int top_k,
                                   const Target &out, Held &held) {
    if (count <= top_k) {
        take_all(count, out);
        return;
    }
    unsigned keys[HELD];
    int pages[HELD];  // loaded while the choice goes on
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const bool seen = held_column(i) < count;
        keys[i] = seen ? order(scores[i]) : 0;
        pages[i] = seen ? out.page(held_column(i)) : 0;
    }
    const Spread spread = spread_of(keys, held.counters);
    const auto key = [&](int i) { return keys[i]; };
    const Cut cut = find_cut<HELD>(key, held_column, count, top_k, spread.least, spread.most,
                                   held.counters);
    unsigned words[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        words[i] = __ballot_sync(ALL, cut.takes(keys[i], held_column(i)));
        if (threadIdx.x % 32 == 0) held.words[i * WARPS + threadIdx.x / 32] = words[i];
    }
    __syncthreads();
    write_words(words, pages, out, held);
}

__global__ void __launch_bounds__(THREADS, 2) held_rows(Scores scores, Target target) {
    __shared__ Held held;
    const int row = blockIdx.x;
    const float *const data = scores.data + row * scores.stride;
    const Target out = target.of(row);
    clear(held.counters);
    take_turn();
    // All columns lie in memory: nothing waits for the row's length.
    float mine[HELD];
    const float *const first = data + threadIdx.x;
    const int beyond = scores.columns - (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        mine[i] = i * THREADS < beyond ? load_early(first + i * THREADS) : 0.0f;
    }
    const int count = seen(scores, row);
    out.end_at(min(count, scores.top_k));
    choose_held(mine, count, scores.top_k, out, held);
}
