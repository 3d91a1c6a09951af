// What the kernel asks of the device beyond C++: clusters of blocks that write into each other's
// shared memory, copies that barriers count, products of small tiles.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "device/barriers.cuh"
#include "device/copies.cuh"
#include "device/lanes.cuh"
#include "device/numbers.cuh"
#include "device/order.cuh"
#include "device/tiles.cuh"

// Take registers from the pool, or give them back, so that a thread has `COUNT`; whole warpgroups.
template <int COUNT>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ inline void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Say that this thread has come so far, and wait until all of the cluster have. Of what they did
// before, only barriers that were made and shown need be seen after; waiting for all that they wrote
// would take as long as a tile.
__device__ inline void arrive_at_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

__device__ inline void await_cluster() {
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

__device__ inline void meet_cluster() {
    arrive_at_cluster();
    await_cluster();
}

// Fetch the description of a tensor before its first copy.
__device__ inline void ask_for(const CUtensorMap &tensor) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&tensor) : "memory");
}

// Copy the box at a place of a tensor of four dimensions; `barrier` counts its bytes.
__device__ inline void copy_box(void *to, const CUtensorMap &tensor, int x, int y, int z, int w,
                                unsigned long long *barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
        "l"(&tensor), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
        : "memory");
}

// Ask the L2 cache for a box, which the launch before may still be writing: see `bring_line`.
__device__ inline void bring_box(const CUtensorMap &tensor, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(
                     &tensor),
                 "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

// Copy a box from shared memory to its place; the thread that asks waits for it, by groups.
__device__ inline void store_box(const void *from, const CUtensorMap &tensor, int x, int y, int z,
                                 int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(
            &tensor),
        "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(from))
        : "memory");
}

// Make a group of the boxes that this thread has had stored since the last one.
__device__ inline void close_boxes() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Wait until all groups of this thread have been read.
__device__ inline void await_boxes_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Write into a block of the cluster without waiting; a barrier of the same block counts the bytes.
__device__ inline void send(unsigned to, float4 value, unsigned barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(to),
        "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)), "r"(__float_as_uint(value.z)),
        "r"(__float_as_uint(value.w)), "r"(barrier)
        : "memory");
}

// Write 16 bytes at once, which the compiler may split into four, or do nothing.
__device__ inline void store_if(void *to, uint4 value, bool stores) {
    asm volatile(
        "{\n"
        ".reg .pred stores;\n"
        "setp.ne.b32 stores, %5, 0;\n"
        "@stores st.global.v4.b32 [%0], {%1, %2, %3, %4};\n"
        "}" ::"l"(to),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"((int)stores)
        : "memory");
}
