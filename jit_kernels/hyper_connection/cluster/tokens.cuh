// Few tokens, second launch: a block mixes one token when the sums of its pieces are there.
//
// Before that it loads the token's streams, and weights. The first launch lets this one begin when
// the launches before it have ended; only what that launch writes itself is read after
// `await_launch_before`. No other launch may come between the two.
#pragma once

#include "gate.cuh"
#include "mix.cuh"
#include "pieces.cuh"

// A mixer has the channels of two ranks of a cluster, `TOKEN_MIXERS` apart.
constexpr int TOKEN_MIXERS = 8, TOKEN_THREADS = (TOKEN_MIXERS + 1) * 32;
static_assert(2 * TOKEN_MIXERS == MAX_RANKS);
// Of what was handed over a lane has four sums, and lanes side by side have all sums of a place.
constexpr int FOURS_SENT = SENT / 4, LANE_GROUPS = 32 / FOURS_SENT;

template <class Shape>
struct TokenMemory {
    alignas(16) float sums[TOKEN_MIXERS][SENT];
    float squares[TOKEN_MIXERS];
    alignas(16) float gain[Shape::WIDTH];
};

__device__ inline float4 add_from_lane(float4 a, int lanes) {
    const float4 other = {__shfl_xor_sync(ALL, a.x, lanes), __shfl_xor_sync(ALL, a.y, lanes),
                          __shfl_xor_sync(ALL, a.z, lanes), __shfl_xor_sync(ALL, a.w, lanes)};
    return add_fours(a, other);
}

// Add up a mixer's share of the pieces, by pairs. The head uses four of the sums, and the squares.
template <class Shape, class Memory>
__device__ inline void add_pieces(const Call &call, Memory &memory, int token, int mixer) {
    constexpr int PLACES = PIECES / Shape::PAIR, EACH_LANE = PLACES / (TOKEN_MIXERS * LANE_GROUPS);
    const int lane = threadIdx.x % 32, four = lane % FOURS_SENT;
    const int group = mixer * LANE_GROUPS + lane / FOURS_SENT;
    const float *const from =
        call.sums + ((long long)token * PLACES + group * EACH_LANE) * SENT + four * 4;
    float4 x[EACH_LANE];
#pragma unroll
    for (int i = 0; i < EACH_LANE; i++) x[i] = read_written(from + i * SENT);
#pragma unroll
    for (int step = 1; step < EACH_LANE; step *= 2) {
#pragma unroll
        for (int i = 0; i < EACH_LANE; i += 2 * step) x[i] = add_fours(x[i], x[i + step]);
    }
#pragma unroll
    for (int lanes = FOURS_SENT; lanes < 32; lanes *= 2) x[0] = add_from_lane(x[0], lanes);
    if (lane < FOURS_SENT) *reinterpret_cast<float4 *>(&memory.sums[mixer][four * 4]) = x[0];
}

// Add up by pairs what the mixers left of one line, or of the squares.
__device__ inline float add_mixers(const float *from, int stride) {
    float x[TOKEN_MIXERS];
#pragma unroll
    for (int i = 0; i < TOKEN_MIXERS; i++) x[i] = from[i * stride];
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// The channels of a mixer's thread: by eights, `PER_RANK` of each of two ranks. Of 56 eights of a
// rank the last 8 lanes have one less.
template <class Shape>
struct Share {
    static constexpr int EIGHTS = Shape::BLOCK / 8, PER_RANK = (EIGHTS + 31) / 32;
    static constexpr int COUNT = 2 * PER_RANK;
    int lane, mixer;

    __device__ bool exists(int i) const { return lane + i % PER_RANK * 32 < EIGHTS; }
    // Those of an eight that does not exist are the rank's last.
    __device__ int channel(int i) const {
        const int rank = mixer + i / PER_RANK * TOKEN_MIXERS;
        return rank * Shape::BLOCK + min(lane + i % PER_RANK * 32, EIGHTS - 1) * 8;
    }
};

// Add up the squares of what was mixed, as blocks of a cluster do: over the lanes of each rank,
// over two ranks, over the mixers.
template <class Shape>
__device__ inline float add_squares_of_token(const Share<Shape> &share,
                                             const uint4 (&mixed)[Share<Shape>::COUNT],
                                             TokenMemory<Shape> &memory) {
    float ranks[2] = {};
#pragma unroll
    for (int i = 0; i < share.COUNT; i++) {
        ranks[i / share.PER_RANK] += share.exists(i) ? squares_of(mixed[i]) : 0.0f;
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
#pragma unroll
        for (float &sum : ranks) sum += __shfl_xor_sync(ALL, sum, step);
    }
    if (share.lane == 0) memory.squares[share.mixer] = ranks[0] + ranks[1];
    __syncwarp();
    meet<2, TOKEN_MIXERS * 32>();
    return add_mixers(memory.squares, 1);
}

// Eight channels of each stream, as many times as a thread has them.
template <class Shape>
struct TokenStreams {
    uint4 eights[Share<Shape>::COUNT][STREAMS];

    __device__ TokenStreams(const Call &call, const Share<Shape> &share, int token) {
#pragma unroll
        for (int i = 0; i < share.COUNT; i++) {
#pragma unroll
            for (int stream = 0; stream < STREAMS; stream++) {
                eights[i][stream] =
                    read_settled(call.streams + token * call.token_stride +
                                 stream * call.stream_stride + share.channel(i));
            }
        }
    }
};

// Mix a thread's channels, norm and store them.
template <class Shape, bool NORM>
__device__ inline void mix_share(const Call &call, const TokenStreams<Shape> &streams,
                                 TokenMemory<Shape> &memory, const Share<Shape> &share, int token,
                                 float4 gates) {
    uint4 mixed[share.COUNT];
#pragma unroll
    for (int i = 0; i < share.COUNT; i++) mixed[i] = mix_channels(streams.eights[i], gates);
    if constexpr (NORM) {
        const float factor = norm_factor(call, add_squares_of_token(share, mixed, memory));
#pragma unroll
        for (int i = 0; i < share.COUNT; i++) {
            float gain[8];
#pragma unroll
            for (int j = 0; j < 8; j++) gain[j] = memory.gain[share.channel(i) + j];
            mixed[i] = norm_channels(mixed[i], factor, gain);
        }
    }
#pragma unroll
    for (int i = 0; i < share.COUNT; i++) {
        store_if(call.mixed + (long long)token * Shape::WIDTH + share.channel(i), mixed[i],
                 share.exists(i));
    }
}

// What lanes make of a token's sums: a lane has one line.
template <bool HEAD, class Memory>
__device__ inline float logit_of(const Call &call, const Memory &memory, const Line<HEAD> &line) {
    const int lane = threadIdx.x % 32;
    return line.logit(call, add_mixers(memory.sums[0] + min(lane, LINES), SENT));
}

// Write `post`, and balance the matrix, while others mix the token.
__device__ inline void finish_gates(const Call &call, int token, float z) {
    const int lane = threadIdx.x % 32;
    if (lane / STREAMS == 1) {
        call.post[token * STREAMS + lane - STREAMS] = 2.0f * sigmoid(z);
    }
    float a[STREAMS][STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++) {
        a[i / STREAMS][i % STREAMS] = __shfl_sync(ALL, z, 2 * STREAMS + i);
    }
    if (lane == 0) balance(call, a, token);
}

template <class Shape, bool HEAD, bool NORM>
__device__ inline void run_token_mixer(const Call &call, TokenMemory<Shape> &memory, int token,
                                       int mixer) {
    const Line<HEAD> line(call);
    const Share<Shape> share{(int)threadIdx.x % 32, mixer};
    if (NORM) {
        for (int i = threadIdx.x * 4; i < Shape::WIDTH; i += TOKEN_MIXERS * 32 * 4) {
            copy_if(&memory.gain[i], call.weight + i, true);
        }
    }
    const TokenStreams<Shape> streams(call, share, token);
    await_copies();
    take_turn();
    add_pieces<Shape>(call, memory, token, mixer);
    __syncwarp();
    meet<1, TOKEN_THREADS>();
    const float gate = sigmoid(logit_of<HEAD>(call, memory, line));
    const float4 gates = gates_of(gate + call.hc_eps);
    mix_share<Shape, NORM>(call, streams, memory, share, token, gates);
}

template <bool HEAD, class Memory>
__device__ inline void run_token_gater(const Call &call, Memory &memory, int token) {
    const Line<HEAD> line(call);
    take_turn();
    meet<1, TOKEN_THREADS>();
    if (HEAD) return;
    finish_gates(call, token, logit_of<HEAD>(call, memory, line));
}

template <class Shape, bool HEAD, bool NORM>
__device__ inline void run_token(const Call &call, TokenMemory<Shape> &memory) {
    const int token = blockIdx.x, warp = warp_number();
    if (warp < TOKEN_MIXERS) {
        run_token_mixer<Shape, HEAD, NORM>(call, memory, token, warp);
    } else {
        run_token_gater<HEAD>(call, memory, token);
    }
}
