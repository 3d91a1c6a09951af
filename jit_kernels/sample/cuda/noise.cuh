// The noise of a draw, and the score that a token races with: the bits of `noise.py`. No product is
// fused with a sum.
#pragma once

__device__ inline float polynomial(const float (&terms)[8], float x) {
    float total = terms[7];
#pragma unroll
    for (int i = 6; i >= 0; i--) total = __fadd_rn(__fmul_rn(total, x), terms[i]);
    return total;
}

// ln(x) of a normal positive number.
__device__ inline float logarithm(float x) {
    constexpr float TERMS[8] = {0.99999994f, -0.50000364f, 0.33335114f, -0.24970071f,
                                0.19898565f, -0.17247014f, 0.1623419f,  -0.10134057f};
    const int exponent = (__float_as_int(x) - 0x3f3504f3) >> 23;
    const float part = __fadd_rn(__int_as_float(__float_as_int(x) - (exponent << 23)), -1.0f);
    return __fadd_rn(__fmul_rn(polynomial(TERMS, part), part),
                     __fmul_rn((float)exponent, 0.6931472f));
}

// Of the standard Gumbel distribution, for the token of an id in the row of a key.
__device__ inline float gumbel(unsigned long long key, int id) {
    constexpr float TERMS[8] = {0.49999997f, 0.20834327f, 0.12460045f, 0.09319676f,
                                0.02195178f, 0.22096539f, -0.290545f,  0.32765117f};
    unsigned long long bits = key + (id + 1ull) * 0x9E3779B97F4A7C15ull;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBull;
    bits ^= bits >> 31;
    const int high = (int)(bits >> 32), low = (int)(bits & 0x7fffffff) | 1;
    const float w = __fadd_rn(__fmul_rn((float)(high & 0x7fffffff), 0x1p-32f),
                              __fmul_rn((float)low, 0x1p-63f));
    const float log_w = logarithm(w);
    const float late = -logarithm(-log_w);
    const float early = -__fadd_rn(__fmul_rn(polynomial(TERMS, w), w), log_w);
    return high < 0 ? late : early;
}

// `warmth` is 1 / temperature.
__device__ inline double score_of(float logit, double warmth, unsigned long long key, int id) {
    return __dadd_rn(__dmul_rn((double)logit, warmth), (double)gumbel(key, id));
}
