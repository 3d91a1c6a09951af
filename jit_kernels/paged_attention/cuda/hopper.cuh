// What the kernels ask of a Hopper device beyond C++: clusters of blocks that copy into each
// other's shared memory, products of a group of four warps, reads past the L1 cache.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "device/barriers.cuh"
#include "device/copies.cuh"
#include "device/lanes.cuh"
#include "device/numbers.cuh"
#include "device/order.cuh"
#include "device/products.cuh"

// Say that this thread has come so far; `await_cluster` waits until all of the cluster have. With
// RELEASE they see what it did before, without it only barriers that were made and shown.
template <bool RELEASE>
__device__ inline void arrive_at_cluster() {
    if (RELEASE) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    } else {
        asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    }
}

__device__ inline void await_cluster() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Copy a multiple of 16 bytes into a block of the cluster; a barrier of the same block counts them.
__device__ inline void send(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
        "[%0], [%1], %2, [%3];" ::"r"(to),
        "r"(shared_address(from)), "r"(bytes), "r"(barrier)
        : "memory");
}

// Copy 16 bytes of global memory into shared memory without waiting, or write zeros there and read
// nothing.
__device__ inline void copy_or_clear(void *to, const void *from, bool copies) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(copies ? 16 : 0)
                 : "memory");
}

// Ask for 16 bytes that are read once, past the L1 cache. The compiler keeps the order of such
// requests.
__device__ inline uint4 read_16(const void *from) {
    uint4 value;
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

__device__ inline uint2 read_8(const void *from) {
    uint2 value;
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(from)
                 : "memory");
    return value;
}

__device__ inline int read_int(const int *from) {
    int value;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ inline float read_float(const float *from) {
    return __int_as_float(read_int(reinterpret_cast<const int *>(from)));
}

// Name an operand of products: 64 lines of 64 bfloat16 numbers in shared memory, at a multiple of
// 1024 bytes. The 16-byte chunks of a line lie at their number xor the line's, modulo 8. Eight
// lines are 1024 bytes, whichever way the operand is read.
__device__ inline unsigned long long operand(const void *tile) {
    constexpr unsigned long long swizzled = 1ull << 62, eight_lines = 1024 >> 4;
    return swizzled | eight_lines << 32 | eight_lines << 16 |
           (shared_address(tile) & 0x3ffff) >> 4;
}

// How much to add to an operand for the next 16 numbers that are summed over: they lie in the same
// lines, or are the next 16 lines.
constexpr int IN_LINES = 32 >> 4, NEXT_LINES = 16 * 128 >> 4;

// Add products over 16 numbers of the 64 lines of `a`, of which each warp has 16, and of the 64
// lines of `b`, or with BY_LINE over 16 lines of `b` and for its 64 columns. The first ones are
// taken as they are.
template <bool BY_LINE>
__device__ inline void multiply(float (&sums)[32], unsigned long long a, unsigned long long b,
                                bool first) {
    asm volatile(
        "{\n"
        ".reg .pred more;\n"
        "setp.eq.b32 more, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUM_NAMES
        "%32, %33, more, 1, 1, 0, %35;\n"
        "}"
        : ALL_SUMS(sums)
        : "l"(a), "l"(b), "r"((int)first), "n"(BY_LINE ? 1 : 0)
        : "memory");
}
