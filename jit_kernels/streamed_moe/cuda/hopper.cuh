// What the kernel asks of the device beyond C++: copies into shared memory, products of tiles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr unsigned ALL = 0xffffffffu;

__device__ inline unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// The number of this warp, which the compiler then knows to be the same in all its threads.
__device__ inline int warp_number() { return __shfl_sync(ALL, (int)threadIdx.x / 32, 0); }

// Make a barrier that one arrival and the bytes it announces complete.
__device__ inline void make_barrier(unsigned long long *barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier))
                 : "memory");
}

// Let bulk copies see what this thread did to shared memory.
__device__ inline void show_to_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void expect_bytes(unsigned long long *barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// Wait for the phase of a barrier, 0 or 1 in turn, to complete.
__device__ inline void await_phase(unsigned long long *barrier, int phase) {
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

// Copy a multiple of 16 bytes from global memory; `barrier` counts them.
__device__ inline void bulk_copy(void *to, const void *from, unsigned bytes,
                                 unsigned long long *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Copy 16 bytes, read once, from global memory; a group of copies is what lies between two `close`.
__device__ inline void copy_16(unsigned to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}

__device__ inline void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until this thread has no more than OPEN groups of copies under way.
template <int OPEN>
__device__ inline void await_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
}

// Wait until all that the launch before wrote is there; let the next launch begin its own reads.
__device__ inline void await_launch_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ inline void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Load four matrices of 8 rows and 16 bytes; a lane names one of the rows.
__device__ inline void load_matrices(unsigned (&a)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(row));
}

// Add the product of 16 rows and 8 columns of 16 bfloat16 channels each.
__device__ inline void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned low,
                                unsigned high) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
}
