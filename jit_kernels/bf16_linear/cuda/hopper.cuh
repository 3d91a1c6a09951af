// What the kernel takes from the device: tensor products, loads and clusters.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "device/order.cuh"
#include "device/tiles.cuh"

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
