// What products of few rows and a weight that is read once are made of: how a weight comes from
// memory, how a block of 128 channels is multiplied, how a launch begins while another ends.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "device/order.cuh"

constexpr int WARPS = 8, LINES = 16, BLOCK = 128, HALF = 64;
// Blocks of the weight that a warp has on their way. So few registers are held that three blocks of
// threads share a multiprocessor: where others hold some of them back, a weight of 2,048 warps
// still needs no second turn.
constexpr int HELD = 2, RESIDENT = 3;
// Those that are asked for before the row, which comes after them.
constexpr int EARLY = 1;

// Read what nobody writes, and but once. Of loads said to be constant (`nc`) the assembler would
// move a wait for the launch before to the front.
__device__ inline uint4 read_through(const unsigned char *from) {
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

// Read what the launch before has written.
__device__ inline uint4 read_row(const unsigned char *from) {
    uint4 x;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}
__device__ inline float read_scale(const float *from) {
    float x;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}

// Add the product of 16 lines and 8 rows of 32 channels each.
__device__ inline void multiply(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2,
                                unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A lane's share of a block: of each half, 16 channels of two lines, and the block's scale.
struct Weights {
    uint4 low[2], high[2];
    float scale;

    __device__ void load(const unsigned char *line, int depth, const float *scales, int block) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            low[half] = read_through(line + block * BLOCK + half * HALF);
            high[half] = read_through(line + 8ll * depth + block * BLOCK + half * HALF);
        }
        scale = read_scale(scales + block);
    }
};

// Add the product of a block: of each half, a lane has 16 channels of one row.
__device__ inline void multiply_block(float (&part)[4], const Weights &weights,
                                      const uint4 (&x)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 &a = weights.low[half], &c = weights.high[half], &b = x[half];
        multiply(part, a.x, c.x, a.y, c.y, b.x, b.y);
        multiply(part, a.z, c.z, a.w, c.w, b.z, b.w);
    }
}

// Launch blocks of WARPS warps, which may begin while the launch before ends; they wait for that by
// themselves.
template <class Call>
int launch_early(void (*kernel)(const Call), dim3 blocks, int shared_bytes, const Call &call,
                 void *where) {
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3(WARPS * 32);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, call);
}
