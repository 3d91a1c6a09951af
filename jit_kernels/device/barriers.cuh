// Barriers in a block's shared memory that count arrivals and bytes, and copies that they count.
#pragma once

__device__ inline unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// Make a barrier that so many arrivals, and the bytes they announce, complete.
__device__ inline void make_barrier(unsigned long long *barrier, int arrivals = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

// Let the cluster see barriers that this thread made, when all have met afterwards.
__device__ inline void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Let bulk copies and products of four warps see what this thread did to shared memory.
__device__ inline void show_to_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void arrive(unsigned long long *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Arrive, and announce bytes, some of which may have been counted already.
__device__ inline void expect_bytes(unsigned long long *barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// Whether the phase of a barrier, 0 or 1 in turn, is complete; wait a little if not.
__device__ inline bool is_complete(unsigned long long *barrier, unsigned phase) {
    unsigned done;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.b32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
    return done;
}

// Wait for the phase of a barrier to complete; what never comes ends the kernel, after seconds.
// Bytes that the barrier counted are then there, whichever block of the cluster sent them: they lie
// in this block's own shared memory, so that no wider scope is asked for, with which the L1 cache
// would be emptied each time.
__device__ inline void await_phase(unsigned long long *barrier, unsigned phase) {
    for (int tries = 0; !is_complete(barrier, phase); tries++) {
        if (tries == 1 << 25) __trap();
    }
}

// The same in fewer instructions, for what this block itself has asked for.
__device__ inline void await_own_phase(unsigned long long *barrier, unsigned phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(phase)
        : "memory");
}

// Copy a multiple of 16 bytes from global memory, both at such multiples; `barrier` counts them.
__device__ inline void bulk_copy(void *to, const void *from, unsigned bytes,
                                 unsigned long long *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// The place in another block of the cluster that `mine` has in this one.
__device__ inline unsigned at_rank(const void *mine, int rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(shared_address(mine)), "r"(rank));
    return address;
}
