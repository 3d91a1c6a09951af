// Barriers of a cluster in two steps.
#pragma once

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
