// Routing of many tokens where the logits of a gate are made: they never leave shared memory.
#pragma once

#include "product.cuh"
#include "route.cuh"
#include "sift.cuh"

template <int EXPERTS, int TEAMS>
struct Gate {
    Product<EXPERTS, TEAMS> product;
    Memory memories[Product<EXPERTS, TEAMS>::WARPS];
};

// The part of a call that is the block's, whose logits are in shared memory.
template <int EXPERTS, int TEAMS>
__device__ inline Call part_of(Call call, const Product<EXPERTS, TEAMS> &product) {
    const int first = blockIdx.x * product.TOKENS;
    call.logits = product.logits[0];
    call.stride = STRIDE<EXPERTS>;
    call.experts += (long long)first * call.top_k;
    call.weights += (long long)first * call.top_k;
    call.tokens -= first;
    return call;
}

template <int EXPERTS, int TEAMS, int TOP_K>
__global__ void __launch_bounds__(Product<EXPERTS, TEAMS>::WARPS * 32, 1)
    gate_topk(const __grid_constant__ Call call, const __grid_constant__ Operands operands) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    auto &shared = *reinterpret_cast<Gate<EXPERTS, TEAMS> *>(bytes);
    auto &product = shared.product;
    multiply_gate(operands, product);
    const Call mine = part_of(call, product);
    const int warp = warp_number(), tokens = min(product.TOKENS, mine.tokens);
#pragma unroll 1
    for (int token = warp * 2; token < tokens; token += product.WARPS * 2) {
        route_tokens<2, EXPERTS / 32, TOP_K>(mine, token, shared.memories[warp]);
        __syncwarp();
    }
    // No block ends while others arrive at its barriers.
    __syncwarp();
    meet_cluster();
}

template <int EXPERTS, int TEAMS, int GROUP>
__global__ void __launch_bounds__(Product<EXPERTS, TEAMS>::WARPS * 32, 1)
    gate_hashed(const __grid_constant__ Call call, const __grid_constant__ Operands operands,
                const long long *table, const long long *ids, int known) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    auto &product = *reinterpret_cast<Product<EXPERTS, TEAMS> *>(bytes);
    multiply_gate(operands, product);
    const Call mine = part_of(call, product);
    ids += blockIdx.x * product.TOKENS;
#pragma unroll 1
    for (int i = threadIdx.x; i < product.TOKENS * GROUP; i += product.WARPS * 32) {
        const int token = i / GROUP, place = i % GROUP;
        const bool live = token < mine.tokens && place < mine.top_k;
        const long long expert = live ? look_up(mine, table, ids, known, token, place) : 0;
        weigh_hashed<GROUP>(mine, token, place, expert, live);
    }
    __syncwarp();
    meet_cluster();
}
