// Blocks of 128 tokens: their states, and decoding rows. A state is a maximum, a sum and a weighted
// sum; the order of the sums is that of the tokens.
#pragma once

#include "pool.cuh"

constexpr int BLOCK = 128, FOLDED_ROW = 2 * MAIN, FOLD_THREADS = MAIN / 4;

struct Banks {
    float *state;
    int count;

    __device__ long long bank(long long ring, long long position) const {
        const bool small = position < 1ll << 31;
        return ring * count +
               (small ? (unsigned)position % (unsigned)count : position % count);
    }
    __device__ float *at(long long bank) const { return state + bank * (3 * MAIN); }
};

// One channel of a state, and one token more.
struct Sums {
    float total, weighted;

    __device__ void add(float decay, float weight, float product) {
        total = fmaf(total, decay, weight);
        weighted = fmaf(weighted, decay, product);
    }
};

__device__ inline float4 quotients(float4 x, float4 y) {
    return make_float4(quotient(x.x, y.x), quotient(x.y, y.y), quotient(x.z, y.z),
                       quotient(x.w, y.w));
}

__device__ inline float scaled(float gate) { return __fmul_rn(gate, LOG2_E); }

// What a token weighs, and what it takes from those before it; both gates are scaled, which changes
// no order of theirs.
struct Weight {
    float highest, decay, weight;
};

// The lower of both gates decides; what belongs to the higher one is one.
__device__ inline Weight weight_of(float before, float gate) {
    const float lower = power(-fabsf(__fsub_rn(before, gate)));
    const bool higher = gate > before;
    return {fmaxf(before, gate), higher ? lower : 1.0f, higher ? 1.0f : lower};
}

struct FoldTokens {
    Rows from;
    Banks banks;
    const long long *position;
    const int *ring;
    Ended ended;
    Pages pages;
    float eps;
};

__device__ inline void fold(float &highest, float &total, float &weighted, float kv, float gate) {
    const Weight one = weight_of(scaled(highest), scaled(gate));
    Sums sums = {total, weighted};
    sums.add(one.decay, one.weight, __fmul_rn(one.weight, kv));
    highest = fmaxf(highest, gate), total = sums.total, weighted = sums.weighted;
}

// Advance one decoding row: write its bank, store the record that it finishes.
__global__ void __launch_bounds__(FOLD_THREADS) fold_tokens(const FoldTokens call) {
    __shared__ float groups[GROUPS];
    const int thread = threadIdx.x, lane = thread % GROUP_LANES, group = thread / GROUP_LANES;
    const long long token = blockIdx.x;
    const float4 gain = four(call.pages.weight + 4 * thread);
    take_turn();
    const float *const mine = call.from.rows + token * call.from.stride + 4 * thread;
    const float4 kv = four(mine), plain = four(mine + MAIN);
    const long long position = call.position[token], slot = call.ended.slots[token];
    const long long ring = call.ring[token];
    Turn turn = {};
    if (group == GROUPS - 1) turn.load(call.ended.turn(token), lane);
    if (position < 0) return;
    const int phase = position % BLOCK;
    const float4 ape = four(call.from.ape + phase * FOLDED_ROW + MAIN + 4 * thread);
    float4 highest = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY), total = {},
           weighted = {};
    if (phase) {
        const long long before = call.banks.bank(ring, position - 1);
        const float *const kept = call.banks.at(before) + 4 * thread;
        highest = four(kept), total = four(kept + MAIN), weighted = four(kept + 2 * MAIN);
    }
    const float4 gate = sum(plain, ape);
    fold(highest.x, total.x, weighted.x, kv.x, gate.x);
    fold(highest.y, total.y, weighted.y, kv.y, gate.y);
    fold(highest.z, total.z, weighted.z, kv.z, gate.z);
    fold(highest.w, total.w, weighted.w, kv.w, gate.w);
    float4 *const to =
        reinterpret_cast<float4 *>(call.banks.at(call.banks.bank(ring, position))) + thread;
    to[0] = highest, to[MAIN / 4] = total, to[MAIN / 2] = weighted;
    if (slot <= 0) return;
    const Place place = call.pages.place(slot);
    float4 x = quotients(weighted, total);
    const float squares = squares_of_group(x);
    if (lane == 0) groups[group] = squares;
    __syncthreads();
    x = normed<MAIN>(x, squares_of_record(groups), gain, call.eps);
    store_group(place, group, lane, x, turn);
}
