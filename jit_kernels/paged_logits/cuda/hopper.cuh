// What the kernels ask of a Hopper device beyond C++: copies of pages, products of a group of four
// warps.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "device/barriers.cuh"
#include "device/lanes.cuh"
#include "device/order.cuh"
#include "device/products.cuh"

// Fetch the description of a tensor before its first copy.
__device__ inline void ask_for(const CUtensorMap *tensor) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(tensor) : "memory");
}

// Copy the rows of a tensor that its description makes a tile, from row `first`; `barrier` counts
// their bytes.
__device__ inline void copy_tile(void *to, const CUtensorMap *tensor, int first,
                                 unsigned long long *barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
        "l"(tensor), "r"(0), "r"(first), "r"(shared_address(barrier))
        : "memory");
}

// Add the products of the 64 rows of two operands, 32 channels of e4m3 each; the first ones are taken
// as they are.
__device__ inline void multiply(float (&sums)[32], unsigned long long rows,
                                unsigned long long operand, bool first) {
    asm volatile(
        "{\n"
        ".reg .pred more;\n"
        "setp.eq.b32 more, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 " SUM_NAMES
        "%32, %33, more, 1, 1;\n"
        "}"
        : ALL_SUMS(sums)
        : "l"(rows), "l"(operand), "r"((int)first)
        : "memory");
}
