// Heads of 512 channels of which the last 64 turn, a warp a head at a time, several on their way.
#pragma once

#include "numbers.cuh"

constexpr int HEAD = 512, TURNED = 64, WARPS = 8;

// Norm heads and turn them; a warp has EACH heads of a token. A lane has channels from 8 l and from
// 256 + 8 l on, so that what is written at once is whole sectors of memory.
template <int EACH>
__global__ void __launch_bounds__(WARPS * 32)
    norm_heads(const __nv_bfloat16 *q, const float *rotation, __nv_bfloat16 *out, int tokens,
               int heads, float eps) {
    const int lane = threadIdx.x % 32, shares = heads / EACH;
    const int share = blockIdx.x * WARPS + threadIdx.x / 32;
    const int token = share / shares;
    take_turn();
    if (token >= tokens) return;
    const long long line = (long long)token * heads + share % shares * EACH;
    const long long first = line * HEAD + lane * EIGHT;
    Eight<__nv_bfloat16> read[EACH][2];
#pragma unroll
    for (int i = 0; i < 2 * EACH; i++) read[i / 2][i % 2].load(q + first + i * (HEAD / 2));
    constexpr int PLAIN_LANES = (HEAD / 2 - TURNED) / EIGHT;
    Turn turn;
    if (lane >= PLAIN_LANES) {
        turn.load(rotation + token * 2ll * TURNED, TURNED, (lane - PLAIN_LANES) * EIGHT, 1.0f);
    }
#pragma unroll
    for (int head = 0; head < EACH; head++) {
        float x[2 * EIGHT], squares = 0.0f;
        read[head][0].widen(x);
        read[head][1].widen(x + EIGHT);
#pragma unroll
        for (int j = 0; j < 2 * EIGHT; j++) squares += x[j] * x[j];
        const float factor = rsqrtf(sum_of_lanes<32>(squares) * (1.0f / HEAD) + eps);
#pragma unroll
        for (int j = 0; j < 2 * EIGHT; j++) x[j] = rounded(x[j] * factor);
        if (lane >= PLAIN_LANES) turn.apply(x + EIGHT);
        __nv_bfloat16 *const to = out + first + head * HEAD;
        store(to, x);
        store(to + HEAD / 2, x + EIGHT);
    }
}

// Turn heads back and round them; a block has EACH heads of WARPS tokens, whose scales it writes
// side by side. A lane has 16 channels, eight lanes a scale.
constexpr int SCALES = HEAD / 128;

template <int EACH>
__global__ void __launch_bounds__(WARPS * 32, 4)
    round_heads(const __nv_bfloat16 *x_from, long long stride, const float *rotation,
                unsigned char *codes, float *scales, long long scale_stride, int tokens, int heads) {
    __shared__ float exponents[EACH * SCALES][WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int head = blockIdx.y * EACH, token = blockIdx.x * WARPS + warp;
    const int live = token < tokens ? min(EACH, heads - head) : 0;
    take_turn();
    Eight<__nv_bfloat16> read[EACH][2];
    const __nv_bfloat16 *const from = x_from + token * stride + head * HEAD + lane * (2 * EIGHT);
#pragma unroll
    for (int i = 0; i < 2 * EACH; i++) {
        if (i / 2 < live) read[i / 2][i % 2].load(from + i / 2 * HEAD + i % 2 * EIGHT);
    }
    constexpr int PLAIN_LANES = (HEAD - TURNED) / (2 * EIGHT);
    Turn turn[2];
    if (live && lane >= PLAIN_LANES) {
        const float *const at = rotation + token * 2ll * TURNED;
        for (int i = 0; i < 2; i++) {
            turn[i].load(at, TURNED, (lane - PLAIN_LANES) * (2 * EIGHT) + i * EIGHT, -1.0f);
        }
    }
#pragma unroll
    for (int nth = 0; nth < EACH; nth++) {
        if (nth >= live) break;
        float x[2 * EIGHT];
        read[nth][0].widen(x);
        read[nth][1].widen(x + EIGHT);
        if (lane >= PLAIN_LANES) {
            turn[0].apply(x);
            turn[1].apply(x + EIGHT);
        }
        const unsigned exponent = scale_exponent(largest_of_lanes<8>(largest<2 * EIGHT>(x)));
        const float factor = power_of_two(254 - exponent);
        const uint4 four = make_uint4(e4m3_codes(x, factor), e4m3_codes(x + 4, factor),
                                      e4m3_codes(x + 8, factor), e4m3_codes(x + 12, factor));
        unsigned char *const to = codes + ((long long)token * heads + head + nth) * HEAD;
        *reinterpret_cast<uint4 *>(to + lane * (2 * EIGHT)) = four;
        if (lane % 8 == 0) exponents[nth * SCALES + lane / 8][warp] = power_of_two(exponent);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < EACH * SCALES * WARPS; i += WARPS * 32) {
        const int line = i / WARPS, mine = blockIdx.x * WARPS + i % WARPS;
        if (mine >= tokens || head + line / SCALES >= heads) continue;
        float *const column = scales + (long long)(head * SCALES + line) * scale_stride;
        column[mine] = exponents[line][i % WARPS];
    }
}
