// The product of a gate: 64 or 128 tokens a block, all experts, with the logits in shared memory at the
// end. Two blocks, a cluster, fetch half of the weight each and hand it to both.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "device/barriers.cuh"
#include "device/lanes.cuh"
#include "device/order.cuh"
#include "device/products.cuh"
#include "score.cuh"

// A strip of channels is a line of 128 bytes of each token and expert; an instruction of a team's four
// warps multiplies 64 tokens and 128 experts.
constexpr int CHANNELS = 64, LINE = 128, TEAM_TOKENS = 64, COLUMNS = 128, CLUSTER = 2;

template <int EXPERTS, int TEAMS>
struct Strip {
    unsigned char tokens[TEAMS][TEAM_TOKENS * LINE], experts[EXPERTS * LINE];
};

// Numbers between the logits of one token and the next: eight tokens' pairs lie in all banks.
template <int EXPERTS>
constexpr int STRIDE = EXPERTS + 8;

template <int EXPERTS, int TEAMS>
struct alignas(1024) Product {
    // Warps that multiply, and all: one of the others fetches.
    static constexpr int MULTIPLIERS = 4 * TEAMS, WARPS = MULTIPLIERS + 4;
    static constexpr int TOKENS = TEAM_TOKENS * TEAMS;
    static constexpr int STAGES = (225 << 10) / sizeof(Strip<EXPERTS, TEAMS>);
    union {
        Strip<EXPERTS, TEAMS> strips[STAGES];
        float logits[TOKENS][STRIDE<EXPERTS>];
    };
    unsigned long long full[STAGES], empty[STAGES];
};

struct Operands {
    CUtensorMap tokens, experts;
    int strips;
};

__device__ inline int rank_in_cluster() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Wait until all threads of the cluster are here.
__device__ inline void meet_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

// Arrive at a barrier of any block of the cluster: nothing that was written is to be seen there.
__device__ inline void arrive_at(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Copy a box of a tensor; `barrier` counts its bytes.
__device__ inline void copy_box(void *to, const CUtensorMap &tensor, int channel, int line,
                                unsigned long long *barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
        "l"(&tensor), "r"(channel), "r"(line), "r"(shared_address(barrier))
        : "memory");
}

// The same to the same place of all blocks of the cluster, whose own barriers count.
__device__ inline void copy_box_to_all(void *to, const CUtensorMap &tensor, int channel, int line,
                                       unsigned long long *barrier) {
    constexpr unsigned short everyone = (1 << CLUSTER) - 1;
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
        "l"(&tensor), "r"(channel), "r"(line), "r"(shared_address(barrier)), "h"(everyone)
        : "memory");
}

#define FOUR(sums, i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SIXTEEN(sums, i) FOUR(sums, i), FOUR(sums, i + 4), FOUR(sums, i + 8), FOUR(sums, i + 12)

// Add the products of 64 tokens and 128 experts, 16 channels each. A sum is 64 numbers of a thread:
// 4 j + 2 i + n is of token lane / 4 + 8 i of the 16 that its warp has, expert 8 j + lane % 4 * 2 + n.
__device__ inline void multiply(float (&sums)[64], unsigned long long tokens,
                                unsigned long long experts) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1, 0, 0;"
        : SIXTEEN(sums, 0), SIXTEEN(sums, 16), SIXTEEN(sums, 32), SIXTEEN(sums, 48)
        : "l"(tokens), "l"(experts));
}

// Fetch all strips, one after the other, as stages become free in both blocks.
template <int EXPERTS, int TEAMS>
__device__ inline void fetch(const Operands &from, Product<EXPERTS, TEAMS> &shared) {
    constexpr int PART = EXPERTS / CLUSTER;
    const int first = blockIdx.x * shared.TOKENS;
    const int part = rank_in_cluster() * PART;
    await_launch_before();
    for (int strip = 0; strip < from.strips; strip++) {
        const int stage = strip % shared.STAGES, turn = strip / shared.STAGES;
        Strip<EXPERTS, TEAMS> &to = shared.strips[stage];
        unsigned long long *full = &shared.full[stage];
        await_phase(&shared.empty[stage], turn % 2 ^ 1);
        expect_bytes(full, sizeof to);
        copy_box(to.tokens, from.tokens, strip * CHANNELS, first, full);
        copy_box_to_all(to.experts + part * LINE, from.experts, strip * CHANNELS, part, full);
    }
}

// Multiply all strips, and write the logits over them.
template <int EXPERTS, int TEAMS>
__device__ inline void multiply_strips(int strips, Product<EXPERTS, TEAMS> &shared, int warp) {
    constexpr int GROUPS = EXPERTS / COLUMNS;
    const int lane = threadIdx.x % 32;
    const unsigned empty = lane < CLUSTER ? at_rank(shared.empty, lane) : 0;
    float sums[GROUPS][64] = {};
#pragma unroll 1
    for (int strip = 0; strip < strips; strip++) {
        const int stage = strip % shared.STAGES, turn = strip / shared.STAGES;
        await_phase(&shared.full[stage], turn % 2);
        const unsigned long long tokens = line_operand(shared.strips[stage].tokens[warp / 4]);
        const unsigned long long experts = line_operand(shared.strips[stage].experts);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int step = 0; step < CHANNELS / 16; step++) {
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                // Numbers of 16 bytes: 16 channels of a line are two, 128 lines so many.
                constexpr int GROUP = COLUMNS * LINE / 16;
                multiply(sums[g], tokens + 2 * step, experts + g * GROUP + 2 * step);
            }
        }
        close_products();
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        // The strip before is multiplied.
        const int last = (strip + shared.STAGES - 1) % shared.STAGES;
        if (strip > 0 && lane < CLUSTER) arrive_at(empty + last * sizeof *shared.empty);
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < GROUPS * 64; i++) asm volatile("" : "+f"(sums[i / 64][i % 64])::"memory");
    // All warps are done with the strips.
    asm volatile("bar.sync 1, %0;" ::"n"(shared.MULTIPLIERS * 32) : "memory");
    const int token = warp * 16 + lane / 4, expert = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < GROUPS * 32; i++) {
        const int g = i / 32, at = i % 32 * 2;
        float *to = &shared.logits[token + i % 2 * 8][g * COLUMNS + i % 32 / 2 * 8 + expert];
        *reinterpret_cast<float2 *>(to) = make_float2(sums[g][at], sums[g][at + 1]);
    }
}

// Make the logits of the block's tokens; all threads call it.
template <int EXPERTS, int TEAMS>
__device__ inline void multiply_gate(const Operands &from, Product<EXPERTS, TEAMS> &shared) {
    const int warp = warp_number();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < shared.STAGES; stage++) {
            make_barrier(&shared.full[stage]);
            make_barrier(&shared.empty[stage], CLUSTER * shared.MULTIPLIERS);
        }
        show_barriers();
    }
    __syncthreads();
    meet_cluster();
    if (warp < shared.MULTIPLIERS) {
        multiply_strips(from.strips, shared, warp);
    } else if (threadIdx.x == shared.MULTIPLIERS * 32) {
        fetch(from, shared);
    }
    __syncthreads();
}
