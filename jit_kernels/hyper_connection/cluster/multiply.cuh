// The first warps: they multiply tiles by `fn`.
#pragma once

#include "layout.cuh"

// A multiplier's rows of `fn`, of every number three bfloat16 parts, as products take them: of each
// stream and each 16 channels, a lane has two and two of one line.
template <int EIGHTS>
struct Weights {
    static constexpr int ROWS = EIGHTS == 1 ? STREAMS : LINES;
    unsigned parts[STREAMS][STEPS][EIGHTS][3][2];

    __device__ void split(int stream, int eight, int word, float2 f) {
#pragma unroll
        for (int p = 0; p < 3; p++) {
            const unsigned pair = pack(f.x, f.y);
            parts[stream][word / 2][eight][p][word % 2] = pair;
            f.x -= low_of(pair);
            f.y -= high_of(pair);
        }
    }
};

// Add the squares of the channels that a lane has for products, of two rows.
__device__ __forceinline__ void add_squares(float (&squares)[2], const unsigned (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        squares[i % 2] = fmaf(low_of(x[i]), low_of(x[i]), squares[i % 2]);
        squares[i % 2] = fmaf(high_of(x[i]), high_of(x[i]), squares[i % 2]);
    }
}

// Multiply a multiplier's channels of some streams of a tile, `CHAINS` sums of each line in turn: a
// product waits for the one before it in its sum. Squares as products of rows with themselves would
// take registers that loads ahead need.
template <int CHAINS, int EIGHTS>
__device__ __forceinline__ void multiply_streams(const Weights<EIGHTS> &weights, int begin, int end,
                                                 const unsigned char *streams,
                                                 float (&sums)[CHAINS][EIGHTS][4],
                                                 float (&squares)[2]) {
    const int lane = threadIdx.x % 32, worker = threadIdx.x / 32;
    // Lanes name rows 0 to 15 of the first eight channels, then of the second.
    const unsigned char *at =
        streams + lane % 16 * TOKEN_BYTES + (worker * PIECE + lane / 16 * 8) * 2;
    // What is multiplied next is on the way meanwhile.
    unsigned a[2][4];
    load_matrices(a[0], at + begin * ROW_BYTES);
#pragma unroll
    for (int i = begin * STEPS; i < end * STEPS; i++) {
        const int stream = i / STEPS, step = i % STEPS, next = i + 1;
        const unsigned(&x)[4] = a[i % 2];
        if (next < end * STEPS) {
            load_matrices(a[next % 2], at + next / STEPS * ROW_BYTES + next % STEPS * 32);
        }
#pragma unroll
        for (int p = 2; p >= 0; p--) {
#pragma unroll
            for (int eight = 0; eight < EIGHTS; eight++) {
                multiply(sums[i % CHAINS][eight], x, weights.parts[stream][step][eight][p]);
            }
        }
        add_squares(squares, x);
    }
}

// Write a multiplier's sums for others to add.
template <int EIGHTS, class Memory>
__device__ inline void write_parts(Memory &shared, const float (&sums)[EIGHTS][4],
                                   const float (&squares)[2]) {
    const int lane = threadIdx.x % 32, row = lane / 4;
    float(&to)[TOKENS][SUMS] = shared.parts[threadIdx.x / 32];
#pragma unroll
    for (int eight = 0; eight < EIGHTS; eight++) {
        const float(&mine)[4] = sums[eight];
        const int line = eight * 8 + lane % 4 * 2;
        *reinterpret_cast<float2 *>(&to[row][line]) = make_float2(mine[0], mine[1]);
        *reinterpret_cast<float2 *>(&to[row + 8][line]) = make_float2(mine[2], mine[3]);
    }
    // Four lanes have a row's channels.
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = squares[i] + __shfl_xor_sync(ALL, squares[i], 1);
        sum += __shfl_xor_sync(ALL, sum, 2);
        if (lane % 4 == 0) to[row + i * 8][LINES] = sum;
    }
}

// Add two sums over the multipliers, by pairs of them.
template <class Memory>
__device__ inline float2 add_parts(const Memory &shared, int token, int line) {
    float2 sums[MULTIPLIERS];
#pragma unroll
    for (int w = 0; w < MULTIPLIERS; w++) {
        sums[w] = *reinterpret_cast<const float2 *>(&shared.parts[w][token][line]);
    }
#pragma unroll
    for (int step = 1; step < MULTIPLIERS; step *= 2) {
#pragma unroll
        for (int w = 0; w < MULTIPLIERS; w += 2 * step) {
            sums[w].x += sums[w + step].x;
            sums[w].y += sums[w + step].y;
        }
    }
    return sums[0];
}

// Send four sums of a token, the `nth` of a tile, to the block that owns the token.
template <class Memory>
__device__ inline void send_sums(const Part &part, Memory &shared, int slot, int nth) {
    const int token = nth / FOURS, line = nth % FOURS * 4;
    if (token >= TOKENS) return;
    const float2 low = add_parts(shared, token, line);
    float2 high = {0.0f, 0.0f};
    if (line + 2 < SUMS) high = add_parts(shared, token, line + 2);
    const int owner = part.owner(token), own = token >> part.log_ranks;
    const float *const to = &shared.told[slot][own * part.ranks + part.rank][line];
    send(at_rank(to, owner), make_float4(low.x, low.y, high.x, high.y),
         at_rank(&shared.heard[slot], owner));
}
