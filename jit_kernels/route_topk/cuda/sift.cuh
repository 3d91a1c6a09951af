// Routing of as many experts as whole lanes have: a warp has those of a token in its registers, by
// rough scores. The best of each lane give a floor that as many experts reach as are wanted; the few
// that may reach it, each in a lane of its own, are scored exactly and ranked by comparing all with
// all: those of two tokens at once, half a warp each.
#pragma once

#include "score.cuh"

// Blocks that a multiprocessor has at once, as many as registers allow.
template <int EACH>
constexpr int BLOCKS = EACH > 8 ? 8 : 12;

// Most experts of a token that are ranked.
constexpr int HALF = 16;

// What a warp writes down of the experts found of two tokens.
struct alignas(16) Memory {
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

// Write a number into shared memory, or do nothing; a branch would take longer.
__device__ inline void store_if(int *to, int value, bool stores) {
    asm volatile(
        "{\n"
        ".reg .pred stores;\n"
        "setp.ne.b32 stores, %2, 0;\n"
        "@stores st.shared.b32 [%0], %1;\n"
        "}" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "r"(value), "r"((int)stores)
        : "memory");
}

// Write the experts of each token that reach its floor to `found`, HALF at most, and how many they are
// to `counts`; none of a token that is not `live`.
template <int TOKENS, int EACH>
__device__ inline void gather(const float (&scores)[TOKENS][EACH], const float (&floors)[TOKENS],
                              const bool (&live)[TOKENS], int (*found)[HALF],
                              int (&counts)[TOKENS]) {
    const int lane = threadIdx.x % 32, last = lane * EACH + EACH - 1;
    // The highest of EACH bits is the first expert's.
    unsigned reach[TOKENS] = {}, left;
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        counts[t] = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            reach[t] = __funnelshift_l(__float_as_uint(scores[t][j] - floors[t]), reach[t], 1);
        }
        reach[t] = live[t] ? ~reach[t] & ((1u << EACH) - 1) : 0;
    }
    do {
        left = 0;
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const unsigned lanes = __ballot_sync(ALL, reach[t] != 0);
            const int at = counts[t] + __popc(lanes & ((1u << lane) - 1));
            const int bit = 31 - __clz(reach[t]);
            store_if(&found[t][at], last - bit, reach[t] != 0 && at < HALF);
            reach[t] &= ~(1u << (bit & 31));
            counts[t] += __popc(lanes);
            left |= reach[t];
        }
    } while (__any_sync(ALL, left != 0));
    __syncwarp();
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

// What a score with bias may be below the floor and yet be above: both are rough, and added to a bias
// in float32.
__device__ inline float just_below(float floor) {
    return fmaf(fabsf(floor), -5e-7f, floor - 2.0f * ROUGH_ERROR);
}

// Write to `found` what may be among a token's TOP_K, by exact scores; returns how many. For where
// rough ones leave too many.
template <int TOP_K, int EACH>
__device__ inline int sift_exactly(const Call &call, int token, int (*found)[HALF]) {
    float scores[1][EACH], bias[EACH], floors[1];
    const int first = threadIdx.x % 32 * EACH;
    load_whole(scores[0], call.logits + token * call.stride + first);
    load_whole(bias, call.bias + first);
#pragma unroll
    for (int j = 0; j < EACH; j++) scores[0][j] = score(scores[0][j]) + bias[j];
    find_floors<TOP_K>(scores, floors);
    int counts[1];
    gather(scores, floors, {true}, found, counts);
    if (counts[0] >= TOP_K && counts[0] <= HALF) return counts[0];
    take_turns<TOP_K>(scores[0], *found);
    return TOP_K;
}

// Return how many of the `count` lanes of a half have a better key, or the same and a lower expert.
// `both` is the sum of the two counts, and `most` the larger one.
__device__ inline int rank_of(Memory &memory, int key, int expert, int count, int both, int most) {
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
template <int TOP_K>
__device__ inline void weigh_two(const Call &call, int token, int2 counts, Memory &memory) {
    const int lane = threadIdx.x % 32, half = lane / HALF, most = max(counts.x, counts.y);
    const int count = half ? counts.y : counts.x;
    const bool live = lane % HALF < count;
    int expert = 0, key = LOWEST;
    float weight = 0.0f;
    if (live) {
        expert = memory.found[half][lane % HALF];
        weight = score(call.logits[(token + half) * call.stride + expert]);
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

// Route TOKENS tokens, one or two, by a warp.
template <int TOKENS, int EACH, int TOP_K>
__device__ inline void route_tokens(const Call &call, int token, Memory &memory) {
    const int lane = threadIdx.x % 32;
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
        for (int j = 0; j < EACH; j++) x[t][j] = fmaf(rough_score(x[t][j]), ROUGH_SHARE, bias[j]);
    }
    find_floors<TOP_K>(x, floors);
    bool live[TOKENS];
    int counts[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        live[t] = token + t < call.tokens;
        floors[t] = just_below(floors[t]);
    }
    gather(x, floors, live, memory.found, counts);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        if (live[t] && (counts[t] < TOP_K || counts[t] > HALF)) {
            counts[t] = sift_exactly<TOP_K, EACH>(call, token + t, memory.found + t);
        }
    }
    const int2 both = {counts[0], TOKENS > 1 ? counts[TOKENS - 1] : 0};
    weigh_two<TOP_K>(call, token, both, memory);
}

template <int TOKENS, int EACH, int TOP_K>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS<EACH>)
    route_whole(const __grid_constant__ Call call) {
    __shared__ Memory memories[WARPS];
    const int warp = threadIdx.x / 32, token = (blockIdx.x * WARPS + warp) * TOKENS;
    await_launch_before();
    if (token < call.tokens) route_tokens<TOKENS, EACH, TOP_K>(call, token, memories[warp]);
}
