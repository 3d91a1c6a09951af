// Products of 64 rows and 64 columns by a group of four warps, which run beside the program. A sum is
// 32 numbers of a thread: 4 j + 2 i + n is of row lane / 4 + 8 i, column 8 j + lane % 4 * 2 + n, of
// the 16 rows that its warp has.
#pragma once

#include "barriers.cuh"

// The compiler must neither keep numbers elsewhere when products begin, nor read sums before they
// are done.
__device__ inline void pin(float (&sums)[32]) {
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int TILES>
__device__ inline void pin(float (&sums)[TILES][32]) {
#pragma unroll
    for (int t = 0; t < TILES; t++) pin(sums[t]);
}

// Before the first product: `sums` is one or several.
template <class Sums>
__device__ inline void open_products(Sums &sums) {
    pin(sums);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Let products go on beside the program, which must not touch the sums.
__device__ inline void close_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <class Sums>
__device__ inline void await_products(Sums &sums) {
    close_products();
    pin(sums);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    pin(sums);
}

// Name an operand: lines of 128 bytes of shared memory, at a multiple of 1024 bytes, that are read one
// by one. The 16-byte chunks of a line lie at their number xor the line's, modulo 8.
__device__ inline unsigned long long line_operand(const void *lines) {
    constexpr unsigned long long swizzled = 1ull << 62, eight_lines = (1024ull >> 4) << 32;
    return swizzled | eight_lines | (shared_address(lines) & 0x3ffff) >> 4;
}

// What an instruction that makes a sum calls its numbers, and what these are.
#define SUM_NAMES                                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define FOUR_SUMS(sums, i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define ALL_SUMS(sums)                                                                             \
    FOUR_SUMS(sums, 0), FOUR_SUMS(sums, 4), FOUR_SUMS(sums, 8), FOUR_SUMS(sums, 12),               \
        FOUR_SUMS(sums, 16), FOUR_SUMS(sums, 20), FOUR_SUMS(sums, 24), FOUR_SUMS(sums, 28)
