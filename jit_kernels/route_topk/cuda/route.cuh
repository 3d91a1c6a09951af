// Routing of any number of experts: a warp has all experts of a token in its registers, the first ones
// in the last lane, sorted in each lane. What is highest in the warp is at the head of a lane; that
// lane, the last where several have it, gives it up.
#pragma once

#include "score.cuh"

// Sort descending, by merging odd and even places; `SIZE` is a power of two. Written as templates,
// since loops in loops are not all unrolled where there are sixteen keys.
template <int RUN, int GAP, int SIZE>
__device__ inline void merge(int (&keys)[SIZE]) {
#pragma unroll
    for (int low = 0; low + GAP < SIZE; low++) {
        const int offset = low - GAP % RUN;
        if (offset < 0 || offset / GAP % 2 || low / (2 * RUN) != (low + GAP) / (2 * RUN)) continue;
        const int a = keys[low], b = keys[low + GAP];
        keys[low] = max(a, b);
        keys[low + GAP] = min(a, b);
    }
    if constexpr (GAP > 1) {
        merge<RUN, GAP / 2>(keys);
    } else if constexpr (2 * RUN < SIZE) {
        merge<2 * RUN, 2 * RUN>(keys);
    }
}

template <int SIZE>
__device__ inline void sort(int (&keys)[SIZE]) {
    if constexpr (SIZE > 1) merge<1, 1>(keys);
}

// Load a lane's logits, EACH side by side, or its biases.
template <int EACH, bool WHOLE>
__device__ inline void load(float (&x)[EACH], const float *from, int first, int count) {
    if constexpr (WHOLE && EACH % 4 == 0) {
#pragma unroll
        for (int j = 0; j < EACH; j += 4) {
            const float4 four = *reinterpret_cast<const float4 *>(from + first + j);
            x[j] = four.x;
            x[j + 1] = four.y;
            x[j + 2] = four.z;
            x[j + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int j = 0; j < EACH; j++) x[j] = first + j < count ? from[first + j] : 0.0f;
    }
}

// The expert of a lane's place: in lane `owner` one whose key is `key`. Where a lane gave up several
// alike, one after the other, they are taken in turn.
template <int EACH>
__device__ inline int find(const int (&keys)[EACH], int key, int owner) {
    unsigned places = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        places |= (unsigned)(__shfl_sync(ALL, keys[j], owner) == key) << j;
    }
    const int lane = threadIdx.x % 32;
    const int last_key = __shfl_up_sync(ALL, key, 1), last_owner = __shfl_up_sync(ALL, owner, 1);
    const bool again = lane > 0 && last_key == key && last_owner == owner;
    const unsigned fresh = ~__ballot_sync(ALL, again);
    if (again) {
        // Bit 0 is fresh: the run that this lane continues begins at the last fresh one before it.
        int before = lane - (31 - __clz(fresh & ((1u << lane) - 1)));
#pragma unroll 1
        for (; before > 0; before--) places &= places - 1;
    }
    return (31 - owner) * EACH + __ffs(places) - 1;
}

// EACH   experts a lane has; WHOLE if that is all there are, 16 bytes aligned
// TOP_K  what `call.top_k` is, 0 if that is known only now
template <int EACH, int SIZE, bool WHOLE, int TOP_K>
__global__ void __launch_bounds__(WARPS * 32) route_topk(Call call) {
    const int lane = threadIdx.x % 32, top_k = TOP_K ? TOP_K : call.top_k;
    const int first = (31 - lane) * EACH;
    const int token = blockIdx.x * WARPS + threadIdx.x / 32;
    take_turn();
    if (token >= call.tokens) return;
    const float *const logits = call.logits + token * call.stride;
    float x[EACH], bias[EACH];
    load<EACH, WHOLE>(x, logits, first, call.count);
    load<EACH, WHOLE>(bias, call.bias, first, call.count);
    int keys[EACH], sorted[SIZE];
#pragma unroll
    for (int j = 0; j < SIZE; j++) {
        sorted[j] = LOWEST;
        if (j >= EACH) continue;
        const bool known = WHOLE || first + j < call.count;
        sorted[j] = keys[j] = known ? order(score(x[j]) + bias[j]) : LOWEST;
    }
    sort(sorted);
    int key = LOWEST, owner = 0;
#pragma unroll
    for (int place = 0; place < top_k; place++) {
        const int best = __reduce_max_sync(ALL, sorted[0]);
        const int winner = 31 - __clz(__ballot_sync(ALL, sorted[0] == best));
        if (lane == place) {
            key = best;
            owner = winner;
        }
        if (lane == winner) {
#pragma unroll
            for (int j = 0; j + 1 < SIZE; j++) sorted[j] = sorted[j + 1];
            sorted[SIZE - 1] = LOWEST;
        }
    }
    const int expert = find(keys, key, owner);
    const float weight = lane < top_k ? score(logits[min(expert, call.count - 1)]) : 0.0f;
    float total = weight;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        if (TOP_K && step >= TOP_K) break;
        total += __shfl_xor_sync(ALL, total, step);
    }
    if (lane >= top_k) return;
    const long long at = (long long)token * top_k + lane;
    call.experts[at] = expert;
    call.weights[at] = weight * (reciprocal(total + 1e-20f) * call.scale);
}

// The expert of a place, by the token's id; one that is none is taken for the last.
__device__ inline long long look_up(const Call &call, const long long *table, const long long *ids,
                                    int known, int token, int place) {
    const unsigned long long id = __ldcg(ids + token);
    return __ldcg(table + min(id, known - 1ull) * call.top_k + place);
}

// Weigh a token's experts, which GROUP lanes have, a power of two.
template <int GROUP>
__device__ inline void weigh_hashed(const Call &call, int token, int place, long long expert,
                                    bool live) {
    const float weight = live ? score(call.logits[token * call.stride + expert]) : 0.0f;
    float total = weight;
#pragma unroll
    for (int step = 1; step < GROUP; step *= 2) total += __shfl_xor_sync(ALL, total, step);
    if (!live) return;
    const long long at = (long long)token * call.top_k + place;
    call.experts[at] = expert;
    call.weights[at] = weight * (reciprocal(total + 1e-20f) * call.scale);
}

// Look up a token's experts and weigh them. The table is there and the ids are older than the launch
// before: experts are known when the logits are.
template <int GROUP>
__global__ void __launch_bounds__(WARPS * 32) route_hashed(Call call, const long long *table,
                                                           const long long *ids, int known) {
    const int thread = blockIdx.x * WARPS * 32 + threadIdx.x;
    const int token = thread / GROUP, place = thread % GROUP;
    const bool live = token < call.tokens && place < call.top_k;
    const long long expert = live ? look_up(call, table, ids, known, token, place) : 0;
    take_turn();
    weigh_hashed<GROUP>(call, token, place, expert, live);
}
