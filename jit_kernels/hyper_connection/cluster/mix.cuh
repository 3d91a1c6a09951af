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
            mixed[2 * j] += low_of(pairs[j]) * weights[stream];
            mixed[2 * j + 1] += high_of(pairs[j]) * weights[stream];
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
        squares += low_of(pair) * low_of(pair) + high_of(pair) * high_of(pair);
    }
    return squares;
}

// Send all blocks the squares of this block's channels of a mixer's tokens. Of four numbers over a
// warp, a lane gets the sum of that with its own number modulo four.
template <class Memory>
__device__ inline void send_squares(const Part &part, Memory &shared, int slot, int first,
                                    const float (&x)[EACH]) {
    const int lane = threadIdx.x % 32;
    const bool odd = lane % 2, second = lane / 2 % 2;
    const float low = (odd ? x[1] : x[0]) + __shfl_xor_sync(ALL, odd ? x[0] : x[1], 1);
    const float high = (odd ? x[3] : x[2]) + __shfl_xor_sync(ALL, odd ? x[2] : x[3], 1);
    float sum = (second ? high : low) + __shfl_xor_sync(ALL, second ? low : high, 2);
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(ALL, sum, step);
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

__device__ inline void store(const Call &call, const Part &part, int token, uint4 mixed) {
    const int channel = threadIdx.x % 32 * 8;
    if (channel >= part.channels || token >= call.tokens) return;
    store_whole(call.mixed + (long long)token * call.width + part.first + channel, mixed);
}

// The factor of a mixer's tokens by the squares that all ranks sent; a lane has that of the token
// with its own number modulo four.
template <class Memory>
__device__ inline float norm_factor(const Call &call, const Part &part, const Memory &shared,
                                    int slot, int first) {
    const int lane = threadIdx.x % 32;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MAX_RANKS; i += 32 / EACH) {
        const int rank = i + lane / EACH;
        if (rank < part.ranks) sum += shared.squares[slot][rank][first + lane % EACH];
    }
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(ALL, sum, step);
    return reciprocal_root(sum * call.per_channel + call.norm_eps);
}

// Norm a mixer's tokens, and store them.
__device__ inline void norm(const Call &call, const Part &part, const Shared &shared, int slot,
                            int first, int token, const float (&gain)[8], const Mixed &mixed) {
    const float mine = norm_factor(call, part, shared, slot, first);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float factor = __shfl_sync(ALL, mine, i);
        store(call, part, token + i, norm_channels(mixed.tokens[i], factor, gain));
    }
}

__device__ inline void load_gain(const Call &call, const Part &part, float (&gain)[8]) {
    const int channel = threadIdx.x % 32 * 8;
    for (int j = 0; j < 8; j++) {
        gain[j] = channel < part.channels ? __ldg(call.weight + part.first + channel + j) : 0.0f;
    }
}

// Tell fetchers when a mixer has no more use for what lies in a slot.
struct Free {
    Shared &shared;

    __device__ void operator()(int, int slot) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&shared.free[slot]);
    }
};

// Release slots when all that was sent into them has been used.
template <class Release>
__device__ inline void run_freer(const Part &part, Shared &shared, int nth,
                                 const Release &release) {
    const int lane = threadIdx.x % 32;
    Turn<SLOTS> turn;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; tile++, turn.advance()) {
        if (nth == 0 && lane == 0) expect_bytes(&shared.gated[turn.slot], TOKENS * sizeof(float4));
        await_phase(&shared.gated[turn.slot], turn.phase);
        release(tile, turn.slot);
    }
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
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                mixed.tokens[i] =
                    mix_token(streams + i * TOKEN_BYTES, shared.gates[turn.slot][first + i]);
                if (!NORM) store(call, part, part.token(tile) + first + i, mixed.tokens[i]);
            }
            if constexpr (NORM) {
                float squares[EACH];
#pragma unroll
                for (int i = 0; i < EACH; i++) squares[i] = squares_of(mixed.tokens[i]);
                send_squares(part, shared, mixing.slot, first, squares);
            }
        }
        if (NORM && tile > 0) {
            await_phase(&shared.normed[norming.slot], norming.phase);
            norm(call, part, shared, norming.slot, first, part.token(tile - 1) + first, gain,
                 before);
            norming.advance();
        }
        if (mixes) release(tile, turn.slot);
        before = mixed;
        turn.advance();
        mixing.advance();
    }
}
