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

// Wait for `threads` threads of the block, whole warps, at one of its 16 barriers.
template <int BARRIER, int THREADS>
__device__ inline void meet() {
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

// Wait for all threads of the cluster. Of what they did before, only barriers that were made and
// shown need be seen after; waiting for all that they wrote would take as long as a tile.
__device__ inline void meet_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

// Copy 16 bytes of global memory into shared memory without waiting, or do nothing.
__device__ inline void copy_if(void *to, const void *from, bool copies) {
    asm volatile(
        "{\n"
        ".reg .pred copies;\n"
        "setp.ne.b32 copies, %2, 0;\n"
        "@copies cp.async.cg.shared.global [%0], [%1], 16;\n"
        "}" ::"r"(shared_address(to)),
        "l"(from), "r"((int)copies)
        : "memory");
}

// Arrive when all copies that this thread has asked for are done; one of the barrier's arrivals.
__device__ inline void arrive_with_copies(unsigned long long *barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                     shared_address(barrier))
                 : "memory");
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

// Ask for two numbers of memory that no one writes meanwhile; the compiler keeps the order of such
// requests.
__device__ inline float2 read_or_zero(const float *from, bool reads) {
    float2 value;
    asm volatile(
        "{\n"
        ".reg .pred reads;\n"
        "setp.ne.b32 reads, %3, 0;\n"
        "mov.b32 %0, 0;\n"
        "mov.b32 %1, 0;\n"
        "@reads ld.global.nc.v2.f32 {%0, %1}, [%2];\n"
        "}"
        : "=&f"(value.x), "=&f"(value.y)
        : "l"(from), "r"((int)reads));
    return value;
}

// Read 16 bytes past the L1 cache: what was written before the launch before this one.
__device__ inline uint4 read_settled(const void *from) {
    uint4 value;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

// Read 16 bytes that the launch before wrote, perhaps after this block began.
__device__ inline float4 read_written(const float *from) {
    float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

