// Products of small tiles by a warp, bfloat16 numbers and sums of float32.
#pragma once

#include "barriers.cuh"

// Load four matrices of 8 rows and 16 bytes from shared memory; a lane names one of the rows.
__device__ inline void load_matrices(unsigned (&a)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(row)
                 : "memory");
}
__device__ inline void load_matrices(unsigned (&a)[4], const void *row) {
    load_matrices(a, shared_address(row));
}

// Store what that loads.
__device__ inline void store_matrices(unsigned row, const unsigned (&a)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
                 : "memory");
}

// Add the product of 16 rows and 8 columns of 16 channels each.
__device__ inline void multiply(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2,
                                unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void multiply(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    multiply(sums, a[0], a[1], a[2], a[3], b[0], b[1]);
}
