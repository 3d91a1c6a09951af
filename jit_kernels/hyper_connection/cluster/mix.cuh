// The mixers: warps that mix the tokens of a tile, four each, and norm what they mixed.
#pragma once

#include "layout.cuh"

constexpr int EACH = TOKENS / MIXERS;
static_assert(EACH == 4);

// Eight mixed channels of each of a mixer's tokens, a lane's.
struct Mixed {
    uint4 tokens[EACH];
};

// Mix eight channels of each stream.
__device__ inline uint4 mix_channels(const uint4 (&streams)[STREAMS], float4 gates) {
    const float weights[STREAMS] = {gates.x, gates.y, gates.z, gates.w};
    float mixed[8] = {};
#pragma unroll
    for (int stream = 0; stream < STREAMS; stream++) {
        const uint4 x = streams[stream];
        const unsigned pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            mixed[2 * j] = fmaf(low_of(pairs[j]), weights[stream], mixed[2 * j]);
            mixed[2 * j + 1] = fmaf(high_of(pairs[j]), weights[stream], mixed[2 * j + 1]);
        }
    }
    return make_uint4(pack(mixed[0], mixed[1]), pack(mixed[2], mixed[3]),
                      pack(mixed[4], mixed[5]), pack(mixed[6], mixed[7]));
}

__device__ inline uint4 mix_token(const unsigned char *streams, float4 gates) {
    uint4 x[STREAMS];
#pragma unroll
    for (int stream = 0; stream < STREAMS; stream++) {
        x[stream] = *reinterpret_cast<const uint4 *>(streams + stream * STRIP_BYTES);
    }
    return mix_channels(x, gates);
}

__device__ inline float squares_of(uint4 mixed) {
    float squares = 0.0f;
    for (const unsigned pair : {mixed.x, mixed.y, mixed.z, mixed.w}) {
        squares += fmaf(low_of(pair), low_of(pair), high_of(pair) * high_of(pair));
    }
    return squares;
}

// Of four numbers of each lane, the sums over four lanes: a lane gets that of the number that has
// its own number modulo four.
__device__ inline float fold_four(const float (&x)[EACH]) {
    const int lane = threadIdx.x % 32;
    const bool odd = lane % 2, second = lane / 2 % 2;
    const float low = (odd ? x[1] : x[0]) + __shfl_xor_sync(ALL, odd ? x[0] : x[1], 1);
    const float high = (odd ? x[3] : x[2]) + __shfl_xor_sync(ALL, odd ? x[2] : x[3], 1);
    return (second ? high : low) + __shfl_xor_sync(ALL, second ? low : high, 2);
}

__device__ inline uint4 norm_channels(uint4 x, float factor, const float (&gain)[8]) {
    const auto normed = [&](unsigned pair, int j) {
        return pack(low_of(pair) * factor * gain[j], high_of(pair) * factor * gain[j + 1]);
    };
    return make_uint4(normed(x.x, 0), normed(x.y, 2), normed(x.z, 4), normed(x.w, 6));
}

// Where a mixer's tokens are stored, and whether there are such.
struct Rows {
    __nv_bfloat16 *to;
    long long width;
    int live;

    __device__ Rows(const Call &call, const Part &part, int token) : width(call.width) {
        const int channel = threadIdx.x % 32 * 8;
        to = call.mixed + token * width + part.first + channel;
        live = call.tokens - token;
    }
    __device__ void store(int i, uint4 mixed) const { store_if(to + i * width, mixed, i < live); }
};

// What a mixer's tokens are normed by.
struct Factors {
    float mine;  // of the token with the lane's own number modulo four

    // Of the squares that all ranks sent; each lane adds up those of a token by some ranks.
    __device__ Factors(const Call &call, const Part &part, const float (&squares)[MAX_RANKS][TOKENS],
                       int first) {
        const int lane = threadIdx.x % 32, rank = lane / EACH;
        const float *const from = &squares[rank][first + lane % EACH];
        float sum = rank < part.ranks ? from[0] : 0.0f;
        if (rank + 8 < part.ranks) sum += from[8 * TOKENS];
        for (int step = EACH; step < 32; step *= 2) sum += __shfl_xor_sync(ALL, sum, step);
        mine = reciprocal_root(fmaf(sum, call.per_channel, call.norm_eps));
    }
    __device__ float of(int i) const { return __shfl_sync(ALL, mine, i); }
};
static_assert(MAX_RANKS == 2 * (32 / EACH));

__device__ inline void load_gain(const Call &call, const Part &part, float (&gain)[8]) {
    const int channel = threadIdx.x % 32 * 8;
    for (int j = 0; j < 8; j++) gain[j] = __ldg(call.weight + part.first + channel + j);
}

// Mix a tile, whose streams are there when its gates are; a lane has eight channels of each token.
// Leave squares of them to the courier, a lane those of the token with its own number modulo four.
template <bool NORM, class Memory>
__device__ inline Mixed mix_tile(Memory &shared, int slot, int first, const Rows &rows,
                                 float (&folded)[32]) {
    const int lane = threadIdx.x % 32;
    Mixed mixed;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        mixed.tokens[i] = mix_token(shared.streams[slot] + place_of(first + i, lane),
                                    shared.gates[slot][first + i]);
        if (!NORM) rows.store(i, mixed.tokens[i]);
    }
    if constexpr (NORM) {
        float squares[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) squares[i] = squares_of(mixed.tokens[i]);
        folded[lane] = fold_four(squares);
    }
    return mixed;
}

// Mix tiles when their gates are there, and tell the courier. A tile is normed after the next one
// is mixed, when the squares of all blocks have had the time to arrive.
template <bool NORM, class Memory>
__device__ inline void run_mixer(const Call &call, const Part &part, Memory &shared, int nth) {
    const int lane = threadIdx.x % 32, first = nth * EACH;
    float gain[8];
    if constexpr (NORM) load_gain(call, part, gain);
    Mixed before = {};
    Turn<Memory::COUNT> turn;
    Turn<2> mixing;
    Turn<Memory::NORM_COUNT> norming;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles + NORM; tile++) {
        Mixed mixed = {};
        if (tile < part.tiles) {
            await_phase(&shared.gated[turn.slot], turn.phase);
            const Rows rows(call, part, part.token(tile) + first);
            mixed = mix_tile<NORM>(shared, turn.slot, first, rows, shared.folded[mixing.slot][nth]);
            __syncwarp();
            if (lane == 0) arrive(&shared.mixed[turn.slot]);
            mixing.advance();
        }
        if (NORM && tile > 0) {
            await_phase(&shared.normed[norming.slot], norming.phase);
            const Factors factors(call, part, shared.squares[norming.slot], first);
            const Rows rows(call, part, part.token(tile - 1) + first);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                rows.store(i, norm_channels(before.tokens[i], factors.of(i), gain));
            }
            norming.advance();
        }
        before = mixed;
        turn.advance();
    }
}
