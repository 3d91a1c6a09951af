// Routing of as many experts as whole lanes have: a warp has those of a token in its registers. The
// best of each lane give a floor that as many experts reach as are wanted; the few that reach it, each
// in a lane of its own, are ranked by comparing all with all: those of two tokens at once, half a warp
// each.
#pragma once

#include "score.cuh"

// Blocks that a multiprocessor has at once, as many as registers allow.
template <int EACH>
constexpr int BLOCKS = EACH > 8 ? 8 : 10;

// Most experts of a token that are ranked.
constexpr int HALF = 16;

// What a warp writes down of two tokens: scores without bias, and of those found, expert and key.
template <int EACH>
struct alignas(16) Memory {
    float scores[2][32 * EACH];
    int keys[2][HALF], found[2][HALF];
};

template <int EACH>
__device__ inline void load_whole(float (&x)[EACH], const float *from) {
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        const float4 four = *reinterpret_cast<const float4 *>(from + j);
        x[j] = four.x, x[j + 1] = four.y, x[j + 2] = four.z, x[j + 3] = four.w;
    }
}

// The number that `order` made an integer of.
__device__ inline float unorder(int key) {
    return __int_as_float(key ^ (key >> 31 & 0x7fffffff));
}

// The best of a lane, of all lanes, of all but that, and so on: the last of TOP_K, of each token. At
// least so many experts are as good, unless equals went together.
template <int TOP_K, int TOKENS, int EACH>
__device__ inline void find_floors(const float (&scores)[TOKENS][EACH], float (&floors)[TOKENS]) {
    int left[TOKENS], best[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        float highest = scores[t][0];
#pragma unroll
        for (int j = 1; j < EACH; j++) highest = fmaxf(highest, scores[t][j]);
        left[t] = order(highest);
    }
#pragma unroll
    for (int i = 0; i < TOP_K * TOKENS; i++) {
        const int t = i % TOKENS;
        best[t] = __reduce_max_sync(ALL, left[t]);
        if (left[t] == best[t]) left[t] = LOWEST;
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) floors[t] = unorder(best[t]);
}

// Write the experts that reach `floor` to `found`, HALF at most. Returns how many there are.
template <int EACH>
__device__ inline int gather(const float (&scores)[EACH], float floor, int *found) {
    const int lane = threadIdx.x % 32;
    unsigned reach = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) reach |= scores[j] >= floor ? 1u << j : 0u;
    int count = 0;
    while (const unsigned lanes = __ballot_sync(ALL, reach != 0)) {
        const int at = count + __popc(lanes & ((1u << lane) - 1));
        if (reach && at < HALF) found[at] = lane * EACH + __ffs(reach) - 1;
        reach &= reach - 1;
        count += __popc(lanes);
    }
    __syncwarp();
    return count;
}

// Write the TOP_K best to `found`, one after the other: for scores of which too many are alike.
template <int TOP_K, int EACH>
__device__ inline void take_turns(const float (&scores)[EACH], int *found) {
    const int lane = threadIdx.x % 32;
    unsigned taken = 0;
#pragma unroll 1
    for (int place = 0; place < TOP_K; place++) {
        int best = LOWEST, at = -1;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int key = order(scores[j]);
            const bool better = !(taken >> j & 1) && (at < 0 || key > best);
            best = better ? key : best;
            at = better ? j : at;
        }
        const int highest = __reduce_max_sync(ALL, best);
        const int winner = __ffs(__ballot_sync(ALL, at >= 0 && best == highest)) - 1;
        if (lane == winner) {
            found[place] = lane * EACH + at;
            taken |= 1u << at;
        }
    }
    __syncwarp();
}

// Write to `found` what may be among a token's TOP_K, by scores with bias. Returns how many.
template <int TOP_K, int EACH>
__device__ inline int sift(const float (&scores)[EACH], float floor, int *found) {
    const int count = gather(scores, floor, found);
    if (count >= TOP_K && count <= HALF) return count;
    take_turns<TOP_K>(scores, found);
    return TOP_K;
}

// Return how many of the `count` lanes of a half have a better key, or the same and a lower expert.
// `both` is the sum of the two counts, and `most` the larger one.
template <int EACH>
__device__ inline int rank_of(Memory<EACH> &memory, int key, int expert, int count, int both,
                              int most) {
    const int lane = threadIdx.x % 32, half = lane / HALF;
    const int(&keys)[HALF] = memory.keys[half];
    memory.keys[half][lane % HALF] = key;
    __syncwarp();
    int rank = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int4 others = reinterpret_cast<const int4 *>(keys)[i];
        rank += (others.x > key) + (others.y > key) + (others.z > key) + (others.w > key);
    }
#pragma unroll 1
    for (int other = 8; other < most; other++) rank += keys[other] > key;
    // Where two have the same rank their keys are alike.
    const bool live = lane % HALF < count;
    const unsigned ranks = __reduce_or_sync(ALL, live ? 1u << (rank + half * HALF) : 0u);
    if (__popc(ranks) < both) {
#pragma unroll 1
        for (int other = 0; other < count; other++) {
            rank += keys[other] == key && memory.found[half][other] < expert;
        }
    }
    return rank;
}

// Weigh the experts found of a token and of the next, `counts` of them; of none nothing is written.
template <int EACH, int TOP_K>
__device__ inline void weigh_two(const Call &call, int token, int2 counts, Memory<EACH> &memory) {
    const int lane = threadIdx.x % 32, half = lane / HALF, most = max(counts.x, counts.y);
    const int count = half ? counts.y : counts.x;
    const bool live = lane % HALF < count;
    int expert = 0, key = LOWEST;
    float weight = 0.0f;
    if (live) {
        expert = memory.found[half][lane % HALF];
        weight = memory.scores[half][expert];
        key = order(weight + call.bias[expert]);
    }
    const int place = rank_of(memory, key, expert, count, counts.x + counts.y, most);
    const bool chosen = live && place < TOP_K;
    if (!chosen) weight = 0.0f;
    float total = weight;
#pragma unroll
    for (int step = 1; step < 8; step *= 2) total += __shfl_xor_sync(ALL, total, step);
    if (most > 8) total += __shfl_xor_sync(ALL, total, 8);
    if (!chosen) return;
    const long long at = (long long)(token + half) * TOP_K + place;
    call.experts[at] = expert;
    call.weights[at] = weight * (reciprocal(total + 1e-20f) * call.scale);
}

// A warp takes TOKENS tokens, one or two.
template <int TOKENS, int EACH, int TOP_K>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS<EACH>)
    route_whole(const __grid_constant__ Call call) {
    __shared__ Memory<EACH> memories[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Memory<EACH> &memory = memories[warp];
    const int token = (blockIdx.x * WARPS + warp) * TOKENS;
    await_launch_before();
    if (token >= call.tokens) return;
    float x[TOKENS][EACH], bias[EACH], floors[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        // Beyond the last token stands the last one.
        load_whole(x[t], call.logits + min(token + t, call.tokens - 1) * call.stride + lane * EACH);
    }
    load_whole(bias, call.bias + lane * EACH);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
#pragma unroll
        for (int j = 0; j < EACH; j++) x[t][j] = score(x[t][j]);
#pragma unroll
        for (int j = 0; j < EACH; j += 4) {
            *reinterpret_cast<float4 *>(memory.scores[t] + lane * EACH + j) =
                make_float4(x[t][j], x[t][j + 1], x[t][j + 2], x[t][j + 3]);
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) x[t][j] += bias[j];
    }
    find_floors<TOP_K>(x, floors);
    int2 counts = {sift<TOP_K>(x[0], floors[0], memory.found[0]), 0};
    if (TOKENS > 1 && token + 1 < call.tokens) {
        counts.y = sift<TOP_K>(x[TOKENS - 1], floors[TOKENS - 1], memory.found[1]);
    }
    weigh_two<EACH, TOP_K>(call, token, counts, memory);
}
