// What the blocks of a cluster do with each other; nothing on a device that has no clusters.
#pragma once

#include <cuda_runtime.h>

// Say that this thread has begun. Of what it did before, others see only barriers made and shown.
__device__ inline void arrive_in_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

// Wait until all threads of the cluster have.
__device__ inline void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

// Make a barrier that so many arrivals, and the bytes they announce, complete; and show it.
__device__ inline void make_barrier(unsigned long long *barrier, int arrivals) {
#if __CUDA_ARCH__ >= 900
    const unsigned address = (unsigned)__cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals)
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Wait until a barrier of this block is complete for the first time: the bytes that it counted are
// then there. What never comes ends the kernel, after seconds.
__device__ inline void wait_for(unsigned long long *barrier) {
#if __CUDA_ARCH__ >= 900
    const unsigned address = (unsigned)__cvta_generic_to_shared(barrier);
    unsigned done = 0;
    for (int tries = 0; !done; tries++) {
        if (tries == 1 << 25) __trap();
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], 0;\n"
            "selp.b32 %0, 1, 0, done;\n"
            "}"
            : "=r"(done)
            : "r"(address)
            : "memory");
    }
#endif
}

// The address, in the first block of the cluster, of what lies at `mine` in this one.
__device__ inline unsigned of_leader(const void *mine) {
    unsigned theirs = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(theirs)
                 : "r"((unsigned)__cvta_generic_to_shared(mine)), "r"(0));
#endif
    return theirs;
}

// Write eight bytes into another block, whose barrier counts them.
__device__ inline void send(unsigned to, uint2 value, unsigned barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
            to),
        "r"(value.x), "r"(value.y), "r"(barrier)
        : "memory");
#endif
}

// Arrive at another block's barrier and announce bytes, some of which it may have counted already.
// Nothing else that was written before is shown.
__device__ inline void announce(unsigned barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
#endif
}

// Load one number at this place of the program: the compiler must not wait for anything else first.
__device__ inline float load_early(const float *from) {
    float one;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(one) : "l"(from) : "memory");
    return one;
}
