// A call for index scores, and the sum over heads.
//
// A row's scores have the same bits as those of DeepGEMM, which takes more rows: the same products of tensor cores, channels in the same places, and sums in the same order.
#pragma once

#include "hopper.cuh"

constexpr int HEADS = 64, WIDTH = 128, PAGE_KEYS = 64, PAGE_BYTES = PAGE_KEYS * (WIDTH + 4);
constexpr int CHUNKS = WIDTH / 16;
constexpr int GROUPS = 4, GROUP_THREADS = 128, WORKERS = GROUPS * GROUP_THREADS;
constexpr int QUERY_BYTES = HEADS * WIDTH, ROW_BYTES = QUERY_BYTES + HEADS * 4;
constexpr int MOST_SHARED = 227 * 1024;

struct Call {
    const unsigned char *queries, *pages;
    const float *weights;
    const int *table, *blocks;
    float *scores;
    long long table_stride;
    int rows, columns;
};

// The weights of the heads that a lane adds up, of one row.
__device__ inline void take_weights(float (&weights)[16], const float *row, int quarter) {
#pragma unroll
    for (int i = 0; i < 16; i++) weights[i] = row[i / 2 * 8 + quarter * 2 + i % 2];
}

// One of the parts of a key's score that a lane adds up.
__device__ inline float part(const float (&sums)[32], const float (&weights)[16], int i) {
    return fmaxf(sums[i], 0.0f) * weights[i / 4 * 2 + i % 2];
}

// The scores of two of a warp's keys: relu, weights, and the sum of all heads, of which a lane has
// 16. The same in the four lanes of a key. All is added in the order in which DeepGEMM does.
__device__ inline float2 weighed(const float (&sums)[32], const float (&weights)[16], float scale,
                                 float other_scale) {
    float parts[4] = {part(sums, weights, 0), part(sums, weights, 1), part(sums, weights, 2),
                      part(sums, weights, 3)};
#pragma unroll
    for (int i = 4; i < 32; i += 4) {
#pragma unroll
        for (int j = 0; j < 4; j++) parts[j] += part(sums, weights, i + j);
    }
    float2 both = {(parts[0] + parts[1]) * scale, (parts[2] + parts[3]) * other_scale};
#pragma unroll
    for (int other = 1; other < 4; other *= 2) {
        both.x += __shfl_xor_sync(ALL, both.x, other);
        both.y += __shfl_xor_sync(ALL, both.y, other);
    }
    return both;
}
