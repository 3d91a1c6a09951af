// What all kernels of routing share: the call, the score, and how scores are compared.
#pragma once

#include "device/lanes.cuh"
#include "device/numbers.cuh"
#include "device/order.cuh"

constexpr int WARPS = 4, LOWEST = -0x7fffffff - 1;

struct Call {
    const float *logits, *bias;
    long long stride;
    long long *experts;
    float *weights;
    int tokens, count, top_k;
    float scale;
};

// sqrt(softplus(x)), relatively exact far below zero too: log(1 + u) / u is a polynomial, for u from
// 0 to 1 within 2e-7.
__device__ inline float score(float x) {
    const float u = exponential(-fabsf(x));
    float ratio = 0.0051058258f;
    ratio = fmaf(ratio, u, -0.028991956f);
    ratio = fmaf(ratio, u, 0.077380739f);
    ratio = fmaf(ratio, u, -0.135905996f);
    ratio = fmaf(ratio, u, 0.190713093f);
    ratio = fmaf(ratio, u, -0.248339459f);
    ratio = fmaf(ratio, u, 0.333179355f);
    ratio = fmaf(ratio, u, -0.499994367f);
    ratio = fmaf(ratio, u, 0.99999994f);
    return root(fmaf(ratio, u, fmaxf(x, 0.0f)));
}

// A score times the root of two, within ROUGH_ERROR of a score, in five instructions less: `ratio` is
// off by 4e-4 of itself, and a score by half of that times the root of log(1 + u).
constexpr float ROUGH_ERROR = 1.7e-4f, ROUGH_SHARE = 0.70710678f;

__device__ inline float rough_score(float x) {
    const float u = exponential(-fabsf(x));
    float ratio = -0.14868620f;
    ratio = fmaf(ratio, u, 0.50805002f);
    ratio = fmaf(ratio, u, -0.97282827f);
    ratio = fmaf(ratio, u, 1.99921405f);
    // Twice what `score` has there: a sum runs beside what compares, which is slower.
    return root(fmaf(ratio, u, x + fabsf(x)));
}

// A number that orders as the float32 numbers do.
__device__ inline int order(float x) {
    const int bits = __float_as_int(x);
    return bits ^ (bits >> 31 & 0x7fffffff);
}
