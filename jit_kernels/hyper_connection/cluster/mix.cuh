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

template <int ROW = ROW_BYTES>
__device__ inline uint4 mix_token(const unsigned char *streams, float4 gates) {
    uint4 x[STREAMS];
#pragma unroll
    for (int stream = 0; stream < STREAMS; stream++) {
        x[stream] = *reinterpret_cast<const uint4 *>(streams + stream * ROW);
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

// Add up numbers of all lanes that have the same number modulo four.
template <int COUNT>
__device__ inline void add_eight(float (&sums)[COUNT]) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
#pragma unroll
        for (float &sum : sums) sum += __shfl_xor_sync(ALL, sum, step);
    }
}

// Send all blocks the squares of this block's channels of a mixer's tokens: the first lanes have
// one each.
template <class Memory>
__device__ inline void send_squares(const Part &part, Memory &shared, int slot, int first,
                                    float sum) {
    const int lane = threadIdx.x % 32;
    const float4 sums = {__shfl_sync(ALL, sum, 0), __shfl_sync(ALL, sum, 1),
                         __shfl_sync(ALL, sum, 2), __shfl_sync(ALL, sum, 3)};
    if (lane < part.ranks) {
        const float *const to = &shared.squares[slot][part.rank][first];
        send(at_rank(to, lane), sums, at_rank(&shared.normed[slot], lane));
    }
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

// What a lane has of the squares that all ranks sent of a mixer's tokens, of the token with its own
// number modulo four.
template <class Memory>
__device__ inline float told_squares(const Part &part, const Memory &shared, int slot, int first) {
    const int lane = threadIdx.x % 32;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MAX_RANKS; i += 32 / EACH) {
        const int rank = i + lane / EACH;
        if (rank < part.ranks) sum += shared.squares[slot][rank][first + lane % EACH];
    }
    return sum;
}

__device__ inline float norm_factor(const Call &call, float squares) {
    return reciprocal_root(fmaf(squares, call.per_channel, call.norm_eps));
}

// Norm a mixer's tokens, and store them; a lane has the factor of one.
__device__ inline void norm(const Rows &rows, float mine, const float (&gain)[8],
                            const Mixed &mixed) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float factor = __shfl_sync(ALL, mine, i);
        rows.store(i, norm_channels(mixed.tokens[i], factor, gain));
    }
}

__device__ inline void load_gain(const Call &call, const Part &part, float (&gain)[8]) {
    const int channel = threadIdx.x % 32 * 8;
    for (int j = 0; j < 8; j++) gain[j] = __ldg(call.weight + part.first + channel + j);
}

// Mix a tile when its gates are there. A tile is normed after the next one is mixed, when the
// squares of all blocks have had the time to arrive; then that next one's slot is released.
template <bool NORM, class Release>
__device__ inline void run_mixer(const Call &call, const Part &part, Shared &shared, int nth,
                                 const Release &release) {
    const int lane = threadIdx.x % 32, first = nth * EACH;
    const bool expects = nth == 0 && lane == 0;
    float gain[8];
    if constexpr (NORM) load_gain(call, part, gain);
    Mixed before = {};
    Turn<SLOTS> turn;
    Turn<NORM_SLOTS> mixing, norming;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles + NORM; tile++) {
        const bool mixes = tile < part.tiles;
        Mixed mixed = {};
        if (mixes) {
            if (expects) expect_bytes(&shared.gated[turn.slot], TOKENS * sizeof(float4));
            if (NORM && expects) {
                expect_bytes(&shared.normed[mixing.slot], TOKENS * part.ranks * sizeof(float));
            }
            await_phase(&shared.full[turn.slot], turn.phase);
            await_phase(&shared.gated[turn.slot], turn.phase);
            const unsigned char *const streams =
                shared.streams[turn.slot] + first * TOKEN_BYTES + lane * 16;
            const Rows rows(call, part, part.token(tile) + first);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                mixed.tokens[i] =
                    mix_token(streams + i * TOKEN_BYTES, shared.gates[turn.slot][first + i]);
                if (!NORM) rows.store(i, mixed.tokens[i]);
            }
        }
        if constexpr (NORM) {
            // Squares of this tile and of the one before are added up side by side.
            float squares[EACH], sums[2] = {};
#pragma unroll
            for (int i = 0; i < EACH; i++) squares[i] = squares_of(mixed.tokens[i]);
            sums[0] = fold_four(squares);
            if (tile > 0) {
                await_phase(&shared.normed[norming.slot], norming.phase);
                sums[1] = told_squares(part, shared, norming.slot, first);
            }
            add_eight(sums);
            if (mixes) send_squares(part, shared, mixing.slot, first, sums[0]);
            if (tile > 0) {
                norm(Rows(call, part, part.token(tile - 1) + first), norm_factor(call, sums[1]),
                     gain, before);
                norming.advance();
            }
        }
        if (mixes) release(tile, turn.slot);
        before = mixed;
        turn.advance();
        mixing.advance();
    }
}
