// Routing of as many experts as whole lanes have: a warp has those of a token in its registers. The
// best of each lane give a floor that as many experts reach as are wanted; the few that reach it, each
// in a lane of its own, are ranked by comparing all with all.
#pragma once

#include "score.cuh"

// Blocks a multiprocessor is given at once, as many as registers allow.
template <int EACH>
constexpr int BLOCKS = EACH > 8 ? 8 : 12;

// What a warp writes down: scores without bias, and of those found, expert and key.
template <int EACH>
struct alignas(16) Memory {
    float scores[32 * EACH];
    int keys[32], found[32];
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

// The best of a lane, of all lanes, of all but that, and so on: the last of TOP_K. At least so many
// experts are as good, unless equals went together.
template <int TOP_K, int EACH>
__device__ inline float find_floor(const float (&scores)[EACH]) {
    float highest = scores[0];
#pragma unroll
    for (int j = 1; j < EACH; j++) highest = fmaxf(highest, scores[j]);
    int left = order(highest), best = LOWEST;
#pragma unroll
    for (int place = 0; place < TOP_K; place++) {
        best = __reduce_max_sync(ALL, left);
        if (left == best) left = LOWEST;
    }
    return unorder(best);
}

// Write the experts that reach `floor` to `found`, 32 at most. Returns how many there are.
template <int EACH>
__device__ inline int gather(const float (&scores)[EACH], float floor, int *found) {
    const int lane = threadIdx.x % 32;
    unsigned reach = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) reach |= scores[j] >= floor ? 1u << j : 0u;
    int count = 0;
    while (const unsigned lanes = __ballot_sync(ALL, reach != 0)) {
        const int at = count + __popc(lanes & ((1u << lane) - 1));
        if (reach && at < 32) found[at] = lane * EACH + __ffs(reach) - 1;
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

// Return how many of `count` lanes have a better key, or the same and a lower expert.
template <int EACH>
__device__ inline int rank_of(Memory<EACH> &memory, int key, int expert, int count) {
    const int lane = threadIdx.x % 32;
    memory.keys[lane] = key;
    __syncwarp();
    int rank = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int4 others = reinterpret_cast<const int4 *>(memory.keys)[i];
        rank += (others.x > key) + (others.y > key) + (others.z > key) + (others.w > key);
    }
#pragma unroll 1
    for (int other = 8; other < count; other++) rank += memory.keys[other] > key;
    // Where two have the same rank their keys are alike.
    const unsigned ranks = __reduce_or_sync(ALL, lane < count ? 1u << rank : 0u);
    if (__popc(ranks) < count) {
#pragma unroll 1
        for (int other = 0; other < count; other++) {
            rank += memory.keys[other] == key && memory.found[other] < expert;
        }
    }
    return rank;
}

// Choose and weigh one token's experts, of which lanes know the scores with bias.
template <int EACH, int TOP_K>
__device__ inline void route_one(const Call &call, int token, const float (&scores)[EACH],
                                 Memory<EACH> &memory) {
    const int lane = threadIdx.x % 32;
    int count = gather(scores, find_floor<TOP_K>(scores), memory.found);
    if (count < TOP_K || count > 32) {
        take_turns<TOP_K>(scores, memory.found);
        count = TOP_K;
    }
    const bool live = lane < count;
    int expert = 0, key = LOWEST;
    float weight = 0.0f;
    if (live) {
        expert = memory.found[lane];
        weight = memory.scores[expert];
        key = order(weight + call.bias[expert]);
    }
    const int place = rank_of(memory, key, expert, count);
    const bool chosen = live && place < TOP_K;
    if (!chosen) weight = 0.0f;
    float total = weight;
#pragma unroll
    for (int step = 1; step < 8; step *= 2) total += __shfl_xor_sync(ALL, total, step);
    if (count > 8) {
        total += __shfl_xor_sync(ALL, total, 8);
        total += __shfl_xor_sync(ALL, total, 16);
    }
    if (!chosen) return;
    const long long at = (long long)token * TOP_K + place;
    call.experts[at] = expert;
    call.weights[at] = weight * (reciprocal(total + 1e-20f) * call.scale);
}

// A warp takes every so many-th token, and asks for the next one's logits before it routes one.
template <int EACH, int TOP_K>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS<EACH>)
    route_whole(const __grid_constant__ Call call) {
    __shared__ Memory<EACH> memories[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = gridDim.x * WARPS;
    Memory<EACH> &memory = memories[warp];
    int token = blockIdx.x * WARPS + warp;
    await_launch_before();
    if (token >= call.tokens) return;
    const float *logits = call.logits + token * call.stride;
    float x[EACH], next[EACH], bias[EACH];
    load_whole(x, logits + lane * EACH);
    load_whole(bias, call.bias + lane * EACH);
    while (true) {
        const float *const later = logits + warps * call.stride;
        const bool last = token + warps >= call.tokens;
        if (!last) load_whole(next, later + lane * EACH);
#pragma unroll
        for (int j = 0; j < EACH; j++) x[j] = score(x[j]);
#pragma unroll
        for (int j = 0; j < EACH; j += 4) {
            *reinterpret_cast<float4 *>(memory.scores + lane * EACH + j) =
                make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) x[j] += bias[j];
        route_one<EACH, TOP_K>(call, token, x, memory);
        if (last) return;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < EACH; j++) x[j] = next[j];
        logits = later;
        token += warps;
    }
}
