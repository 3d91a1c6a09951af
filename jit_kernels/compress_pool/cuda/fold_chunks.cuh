// Blocks of 128 tokens, and entries of rings, folded in chunks: what is to be made, and how it is
// written. The launch that reads rings leaves their entries for one that writes them.
#pragma once

#include "fold.cuh"

// Channels of a warp, and how many such parts a record has.
constexpr int LANES = 32, HALVES = MAIN / LANES;

struct FoldChunks {
    Rows from;
    Banks banks;
    Chunks chunks;
    const long long *window_from;
    Ended ended;
    Saves saves;
    Pages pages;
    float eps;
    int blocks, tokens, rows;
};

// Places of parts: of the first block, entries, and the other blocks.
__host__ __device__ inline long long places(const FoldChunks &call) {
    return (call.blocks > 1 ? (long long)call.blocks : 1) + call.saves.count;
}

// One channel of a state; `scaled_highest` is what its name says.
struct Folded {
    float highest = -INFINITY, scaled_highest = -INFINITY, total = 0.0f, weighted = 0.0f;

    __device__ void begin(const float *bank) {
        highest = bank[0], total = bank[MAIN], weighted = bank[2 * MAIN];
        scaled_highest = scaled(highest);
    }
    __device__ void add(float kv, float gate) {
        const Weight one = weight_of(scaled_highest, scaled(gate));
        Sums sums = {total, weighted};
        sums.add(one.decay, one.weight, __fmul_rn(one.weight, kv));
        highest = fmaxf(highest, gate), scaled_highest = one.highest;
        total = sums.total, weighted = sums.weighted;
    }
    __device__ void store(float *to) const {
        to[0] = highest, to[MAIN] = total, to[2 * MAIN] = weighted;
    }
};

// What is made: the state at the end of a block, or an entry's; -1 is none.
struct Task {
    int block = -1, entry = -1;

    __device__ Task(const FoldChunks &call, long long place) {
        const int saved = call.saves.count;
        if (0 < place && place <= saved) {
            entry = (int)place - 1;
        } else if (place >= 0 && place - (place ? saved : 0) < call.blocks) {
            block = (int)place - (place ? saved : 0);
        }
    }
    __device__ bool any() const { return block >= 0 || entry >= 0; }
    // Where it is said with which token it ends.
    __device__ const long long *source(const FoldChunks &call) const {
        return entry < 0 ? call.chunks.last + block : call.saves.source + entry;
    }
    // The token it ends with, if there is one row that begins with a block and is saved at its end;
    // else -1.
    __device__ long long likely(const FoldChunks &call) const {
        const long long token = entry < 0 ? (long long)block * BLOCK + BLOCK - 1
                                          : (long long)call.tokens - call.saves.count + entry;
        return call.rows == 1 && 0 <= token && token < call.tokens ? token : -1;
    }
};

// Norm a group whose record has met, and store it; `mean` is that of the group's channels.
__device__ inline void store_means(const FoldChunks &call, const float (&squares)[HALVES],
                                   const float *mean, int group, const Place &place, float4 gain,
                                   const Turn &turn) {
    const int lane = threadIdx.x % GROUP_LANES;
    float groups[GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; i++) groups[i] = __fadd_rn(squares[2 * i], squares[2 * i + 1]);
    const float4 y =
        normed<MAIN>(four(mean + 4 * lane), squares_of_record(groups), gain, call.eps);
    store_group(place, group, lane, y, turn);
}

// Write one bank.
__global__ void __launch_bounds__(FOLD_THREADS) write_banks(const FoldChunks call) {
    const Saves &saves = call.saves;
    const long long nth = blockIdx.x, source = saves.source[nth], target = saves.target[nth];
    take_turn();
    if (source < 0) return;
    const float4 *const from =
        reinterpret_cast<const float4 *>(saves.fetched + nth * (3 * MAIN)) + threadIdx.x;
    float4 *const to = reinterpret_cast<float4 *>(call.banks.at(target)) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 3; i++) to[i * (MAIN / 4)] = from[i * (MAIN / 4)];
}
