// Blocks of threads in a cluster: numbers for each other, and barriers in two steps.
#pragma once

// Store a number where `at` is in this block's shared memory, in that of the block of `rank`.
__device__ inline void store_in_cluster(unsigned at, int rank, float value) {
    asm volatile(
        "{ .reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "st.shared::cluster.f32 [there], %2; }" ::"r"(at),
        "r"(rank), "f"(value)
        : "memory");
}
// Say that this block has begun, or that it has stored.
__device__ inline void begin_in_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void arrive_in_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void await_cluster() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
