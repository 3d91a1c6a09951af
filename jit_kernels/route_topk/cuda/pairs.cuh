// Routing of as many experts as whole lanes have, two tokens to a warp: 16 lanes have the experts
// of one in their registers. Rough scores find the few that may be chosen; those, each in a lane of
// its own, are scored exactly and ranked by comparing all with all. What is done for the few costs
// a warp as much for two tokens as for one.
#pragma once

#include "sift.cuh"

constexpr int HALF = 16;

// Blocks a multiprocessor is given at once, as many as registers allow.
template <int EACH>
constexpr int PAIR_BLOCKS = EACH > 16 ? 4 : 6;

// What a warp writes down of both tokens: logits, and of those found, expert and key.
template <int EACH>
struct alignas(16) Pair {
    float logits[2][HALF * EACH];
    int keys[2][HALF], found[2][HALF];
};

// The expert that a lane has in its j-th place: four side by side, then those of the other lanes.
__device__ inline int expert_of(int lane, int j) { return j / 4 * 4 * HALF + 4 * lane + j % 4; }

template <int EACH>
__device__ inline void load_spread(float (&x)[EACH], const float *from) {
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        const float4 four = *reinterpret_cast<const float4 *>(from + j * HALF);
        x[j] = four.x, x[j + 1] = four.y, x[j + 2] = four.z, x[j + 3] = four.w;
    }
}

// Score and bias of an expert, but for 6e-4 and a few units in the last place: log2(1 + 2^x) is off
// by 2^-22 and the rounding of 1 + 2^x, together 3e-7, of which the root is 5.5e-4 where the
// logarithm is next to nothing. Infinite from a logit of 88.8 on.
__device__ inline float rough_score(float x, float bias) {
    return fmaf(root(logarithm(1.0f + exponential(x))), 0.83255461f, bias);
}

// The best of a lane, of all lanes of its half, of all but that, and so on: the last of TOP_K, less
// twice what scores are off. As many experts are roughly above it, and none that is below can be as
// good as they are. NaN, which none reaches, if the best of all is infinite.
template <int TOP_K, int EACH>
__device__ inline float rough_floor(const float (&scores)[EACH]) {
    float left = scores[0], best = 0.0f, first = 0.0f;
#pragma unroll
    for (int j = 1; j < EACH; j++) left = fmaxf(left, scores[j]);
#pragma unroll
    for (int place = 0; place < TOP_K; place++) {
        best = left;
#pragma unroll
        for (int step = 1; step < HALF; step *= 2) {
            best = fmaxf(best, __shfl_xor_sync(ALL, best, step));
        }
        if (left == best) left = -INFINITY;
        if (place == 0) first = best;
    }
    const float floor = best - fmaf(fabsf(best), 0x1p-20f, 0x1p-9f);
    return first < INFINITY ? floor : NAN;
}

// Write the experts that reach the half's floor to `found`, HALF at most. Returns how many there
// are.
template <int EACH>
__device__ inline int gather_half(const float (&scores)[EACH], float floor, int *found) {
    const int lane = threadIdx.x % 32;
    const unsigned mine = 0xffffu << (lane & HALF), before = mine & ((1u << lane) - 1);
    unsigned reach = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) reach |= scores[j] >= floor ? 1u << j : 0u;
    int count = 0;
    while (const unsigned lanes = __ballot_sync(ALL, reach != 0)) {
        const int at = count + __popc(lanes & before);
        if (reach && at < HALF) found[at] = expert_of(lane % HALF, __ffs(reach) - 1);
        reach &= reach - 1;
        count += __popc(lanes & mine);
    }
    return count;
}

// Write the TOP_K best to `found`, one after the other, if the half is NEEDY: for scores of which
// too many are alike, or infinite.
template <int TOP_K, int EACH>
__device__ inline void take_turns_by_half(const float *logits, const float (&bias)[EACH],
                                          bool needy, int *found) {
    const int lane = threadIdx.x % HALF;
    unsigned taken = 0;
#pragma unroll 1
    for (int place = 0; place < TOP_K; place++) {
        // A higher key is better; of equal ones, the lower expert.
        unsigned long long best = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int expert = expert_of(lane, j), key = order(score(logits[expert]) + bias[j]);
            const unsigned long long mine =
                (unsigned long long)((unsigned)key ^ 0x80000000u) << 32 | (0xffffu - expert);
            if (!(taken >> j & 1) && mine > best) best = mine;
        }
#pragma unroll
        for (int step = 1; step < HALF; step *= 2) {
            const unsigned long long other = __shfl_xor_sync(ALL, best, step);
            best = other > best ? other : best;
        }
        const int expert = 0xffff - (int)(best & 0xffffu);
        if (expert / 4 % HALF == lane) {
            taken |= 1u << (expert / (4 * HALF) * 4 + expert % 4);
            if (needy) found[place] = expert;
        }
    }
}

// Return how many of the half's `count` have a better key, or the same and a lower expert.
template <int EACH>
__device__ inline int rank_in_half(Pair<EACH> &memory, int key, int expert, int count) {
    const int lane = threadIdx.x % 32, half = lane / HALF;
    memory.keys[half][lane % HALF] = key;
    __syncwarp();
    const int4 *const keys = reinterpret_cast<const int4 *>(memory.keys[half]);
    int rank = 0;
    const auto compare = [&](int i) {
        const int4 others = keys[i];
        rank += (others.x > key) + (others.y > key) + (others.z > key) + (others.w > key);
    };
    compare(0), compare(1);
    if (__any_sync(ALL, count > 8)) compare(2), compare(3);
    // Where two have the same rank their keys are alike.
    const bool live = lane % HALF < count;
    const unsigned ranks = __reduce_or_sync(ALL, live ? 1u << (lane & HALF) << rank : 0u);
    if (__any_sync(ALL, __popc(ranks & 0xffffu << (lane & HALF)) < count)) {
#pragma unroll 1
        for (int other = 0; other < HALF; other++) {
            rank += other < count && memory.keys[half][other] == key &&
                    memory.found[half][other] < expert;
        }
    }
    return rank;
}

// Choose and weigh the experts of a half's token, whose logits are in `memory`.
template <int EACH, int TOP_K>
__device__ inline void route_half(const Call &call, int token, const float (&scores)[EACH],
                                  const float (&bias)[EACH], Pair<EACH> &memory) {
    const int lane = threadIdx.x % HALF, half = threadIdx.x / HALF % 2;
    int *const found = memory.found[half];
    int count = gather_half(scores, rough_floor<TOP_K>(scores), found);
    __syncwarp();
    const bool needy = count < TOP_K || count > HALF;
    if (__any_sync(ALL, needy)) {
        take_turns_by_half<TOP_K>(memory.logits[half], bias, needy, found);
        if (needy) count = TOP_K;
        __syncwarp();
    }
    const bool live = lane < count;
    int expert = 0, key = LOWEST;
    float weight = 0.0f;
    if (live) {
        expert = found[lane];
        weight = score(memory.logits[half][expert]);
        key = order(weight + call.bias[expert]);
    }
    const int place = rank_in_half(memory, key, expert, count);
    const bool chosen = live && place < TOP_K;
    if (!chosen) weight = 0.0f;
    float total = weight;
#pragma unroll
    for (int step = 1; step < HALF; step *= 2) total += __shfl_xor_sync(ALL, total, step);
    if (!chosen || token >= call.tokens) return;
    const long long at = (long long)token * TOP_K + place;
    call.experts[at] = expert;
    call.weights[at] = weight * (reciprocal(total + 1e-20f) * call.scale);
}

// A warp takes every so many-th pair of tokens, and asks for the next one's logits before it routes
// one. Where a pair is short of a token, its half takes the last one again, and does not store it.
template <int EACH, int TOP_K>
__global__ void __launch_bounds__(WARPS * 32, PAIR_BLOCKS<EACH>)
    route_pairs(const __grid_constant__ Call call) {
    __shared__ Pair<EACH> memories[WARPS];
    const int lane = threadIdx.x % HALF, half = threadIdx.x / HALF % 2, warp = threadIdx.x / 32;
    const int step = 2 * gridDim.x * WARPS, end = call.tokens;
    Pair<EACH> &memory = memories[warp];
    int token = 2 * (blockIdx.x * WARPS + warp) + half;
    cudaGridDependencySynchronize();
    if (token - half >= end) return;
    const float *const logits = call.logits + 4 * lane;
    float x[EACH], scores[EACH], bias[EACH];
    load_spread(x, logits + min(token, end - 1) * call.stride);
    load_spread(bias, call.bias + 4 * lane);
    while (true) {
        const bool last = token - half + step >= end;
#pragma unroll
        for (int j = 0; j < EACH; j += 4) {
            *reinterpret_cast<float4 *>(memory.logits[half] + 4 * lane + j * HALF) =
                make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) scores[j] = rough_score(x[j], bias[j]);
        if (!last) load_spread(x, logits + min(token + step, end - 1) * call.stride);
        route_half<EACH, TOP_K>(call, token, scores, bias, memory);
        if (last) return;
        __syncwarp();
        token += step;
    }
}
