// What the kernel takes from the device: tensor products, loads, clusters and early launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

// Read 16 bytes of what nobody writes, and but once; zeros if they are not `there`. Of loads said to
// be constant (`nc`) the assembler would move a wait for the launch before to the front.
__device__ inline uint4 read_through(const __nv_bfloat16 *from, bool there) {
    uint4 x = make_uint4(0, 0, 0, 0);
    if (there) {
        asm volatile("ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "l"(from)
                     : "memory");
    }
    return x;
}

// Read 16 bytes of what the launch before has written.
__device__ inline uint4 read_row(const __nv_bfloat16 *from, bool there) {
    uint4 x = make_uint4(0, 0, 0, 0);
    if (there) {
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "l"(from)
                     : "memory");
    }
    return x;
}

// Add the product of 16 lines and 8 rows of 16 channels each.
__device__ inline void multiply(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2,
                                unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Wait until the launches before have ended and what they wrote can be read.
__device__ inline void await_launch_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Let the launch after begin; it waits for the end of this one by itself.
__device__ inline void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// A barrier of all threads of a cluster, in two halves.
__device__ inline void arrive_in_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void wait_for_cluster() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Write into the shared memory of the cluster's first block, where it has a variable at `mine`.
__device__ inline void write_to_first(float *mine, float x) {
    const unsigned here = static_cast<unsigned>(__cvta_generic_to_shared(mine));
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(here));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
}
