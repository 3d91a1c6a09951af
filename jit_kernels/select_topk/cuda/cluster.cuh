// What the blocks of a cluster do with each other.
#pragma once

#include <cuda_runtime.h>

#include "device/copies.cuh"

// Say that this thread has begun. Of what it did before, others see only barriers made and shown.
__device__ inline void arrive_in_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

// Wait until all threads of the cluster have.
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

// The address, in the first block of the cluster, of what lies at `mine` in this one.
__device__ inline unsigned of_leader(const void *mine) { return at_rank(mine, 0); }

// Write 8 or 16 bytes into another block, whose barrier counts them.
__device__ inline void send(unsigned to, uint2 value, unsigned barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
            to),
        "r"(value.x), "r"(value.y), "r"(barrier)
        : "memory");
}
__device__ inline void send(unsigned to, uint4 value, unsigned barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(to),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
        : "memory");
}

// Arrive at another block's barrier and announce bytes, some of which it may have counted already.
// Nothing else that was written before is shown.
__device__ inline void announce(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

// Load one number at this place of the program: the compiler must not wait for anything else first.
__device__ inline float load_early(const float *from) {
    float one;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(one) : "l"(from) : "memory");
    return one;
}
