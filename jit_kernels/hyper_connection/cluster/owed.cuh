// Multipliers that first mix into a tile's streams the result that is owed to them.
#pragma once

#include "multiply.cuh"

// Of one of a lane's two tokens, what each stream and the result give each new stream.
struct Shares {
    float of[STREAMS + 1][STREAMS];

    __device__ explicit Shares(const float4 (&from)[STREAMS + 1]) {
#pragma unroll
        for (int j = 0; j <= STREAMS; j++) {
            const float4 x = from[j];
            of[j][0] = x.x, of[j][1] = x.y, of[j][2] = x.z, of[j][3] = x.w;
        }
    }
    // The new stream's channel, of that channel of the streams and of the result.
    __device__ float mix(int stream, const float (&x)[STREAMS + 1]) const {
        float mixed = of[0][stream] * x[0];
#pragma unroll
        for (int j = 1; j <= STREAMS; j++) mixed = fmaf(of[j][stream], x[j], mixed);
        return mixed;
    }
};

// Mix one of four pairs of channels of the result into that of the streams.
__device__ __forceinline__ void mix_pair(const Shares &mine, unsigned (&streams)[STREAMS][4],
                                         const unsigned (&result)[4], int pair) {
    float low[STREAMS + 1], high[STREAMS + 1];
#pragma unroll
    for (int j = 0; j <= STREAMS; j++) {
        const unsigned x = j < STREAMS ? streams[j % STREAMS][pair] : result[pair];
        low[j] = low_of(x), high[j] = high_of(x);
    }
#pragma unroll
    for (int k = 0; k < STREAMS; k++) {
        streams[k][pair] = pack(mine.mix(k, low), mine.mix(k, high));
    }
}

// Mix a result into 16 channels of the streams, as products take them: of a lane's four pairs of
// channels the first and the third are those of one token, the others of another, eight after it.
__device__ __forceinline__ void mix_result(unsigned (&streams)[STREAMS][4],
                                           const unsigned (&result)[4],
                                           const float4 (*shares)[STREAMS + 1]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Shares mine(shares[half * 8]);
        mix_pair(mine, streams, result, half);
        mix_pair(mine, streams, result, half + 2);
    }
}

// Mix the result into a multiplier's channels of a tile, leave them where they were, and multiply
// them, a sum of each line for each 16 channels.
template <int EIGHTS>
__device__ __forceinline__ void multiply_owed(const Weights<EIGHTS> &weights, unsigned char *tile,
                                              const unsigned char *result,
                                              const float4 (*shares)[STREAMS + 1],
                                              float (&sums)[CHAINS][EIGHTS][4],
                                              float (&squares)[2]) {
    static_assert(STEPS == CHAINS);
    const int lane = threadIdx.x % 32, worker = threadIdx.x / 32;
    // Lanes name rows 0 to 15 of the first eight channels, then of the second.
    const int token = lane % 16, chunk = worker * PIECE / 8 + lane / 16;
    const unsigned at = shared_address(tile) + place_of(token, chunk);
    const unsigned from = shared_address(result) + place_of<STRIP_BYTES>(token, chunk);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        unsigned x[STREAMS][4], y[4];
        load_matrices(y, from ^ step * 32);
#pragma unroll
        for (int j = 0; j < STREAMS; j++) load_matrices(x[j], (at ^ step * 32) + j * STRIP_BYTES);
        mix_result(x, y, shares + lane / 4);
#pragma unroll
        for (int j = 0; j < STREAMS; j++) {
            store_matrices((at ^ step * 32) + j * STRIP_BYTES, x[j]);
            weights.multiply_step(j * STEPS + step, x[j], sums[step]);
            add_squares(squares, x[j]);
        }
    }
}
