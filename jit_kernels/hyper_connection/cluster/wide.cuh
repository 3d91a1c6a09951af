// Streams of 7,168 channels, 448 a block. Three parts of each number of `fn` are more than the
// registers hold: the least of them lies in shared memory, and of tiles there are few slots. A
// multiplier has half of the block's channels of one stream.
#pragma once

#include "mix.cuh"
#include "staged.cuh"

constexpr int WIDE = 448, WIDE_ROW = WIDE * 2, WIDE_TOKEN = STREAMS * WIDE_ROW + 16;
// Products of a multiplier, 16 channels each; groups of eight channels of a row.
constexpr int WIDE_STEPS = WIDE / 2 / 16, ROW_EIGHTS = WIDE / 8;
// Of the last products the second part of `fn` is in shared memory as well.
constexpr int KEPT_STEPS = WIDE_STEPS - 1;
static_assert(MULTIPLIERS == 2 * STREAMS && WIDE_STEPS * 32 == WIDE);
constexpr int WIDE_MULTIPLIER_REGISTERS = 200, WIDE_MIXER_REGISTERS = 72;
static_assert(2 * WIDE_MULTIPLIER_REGISTERS + WIDE_MIXER_REGISTERS + OTHER_REGISTERS ==
              65536 / 128);

template <int EIGHTS>
struct WideShared {
    // A slot is filled anew as soon as its tile is mixed: squares of that next tile may come before
    // this one is normed.
    static constexpr int COUNT = EIGHTS == 1 ? 3 : 2, NORM_COUNT = COUNT + 1;
    unsigned char streams[COUNT][TOKENS * WIDE_TOKEN];
    uint2 least[MULTIPLIERS][WIDE_STEPS][EIGHTS][32];
    uint2 middle[MULTIPLIERS][WIDE_STEPS - KEPT_STEPS][EIGHTS][32];
    alignas(16) float gain[WIDE];
    float parts[MULTIPLIERS][TOKENS][SUMS];
    float told[COUNT][TOKENS][TOLD];
    float4 gates[COUNT][TOKENS];
    float squares[NORM_COUNT][MAX_RANKS][TOKENS];
    float logits[2][BATCH][STREAMS * STREAMS + 1];
    unsigned long long full[COUNT], heard[COUNT], gated[COUNT];
    unsigned long long normed[NORM_COUNT], filled[2], emptied[2], summed, added;

    __device__ void make_barriers() {
        for (int i = 0; i < COUNT; i++) {
            make_barrier(&full[i], MIXERS * 32);
            make_barrier(&heard[i], 1);
            make_barrier(&gated[i], 1);
        }
        for (int i = 0; i < NORM_COUNT; i++) make_barrier(&normed[i], 1);
        for (int i = 0; i < 2; i++) {
            make_barrier(&filled[i], 1);
            make_barrier(&emptied[i], 1);
        }
        make_barrier(&summed, MULTIPLIERS);
        make_barrier(&added, ADDERS);
    }
};
static_assert(sizeof(WideShared<3>) <= 227 * 1024 && sizeof(WideShared<1>) <= 227 * 1024);

// A multiplier's rows of `fn`, as products take them; of three parts the least is in shared memory,
// where each lane finds its own.
template <int EIGHTS>
struct WideWeights {
    static constexpr int ROWS = EIGHTS == 1 ? STREAMS : LINES;
    unsigned high[WIDE_STEPS][EIGHTS][2], middle[KEPT_STEPS][EIGHTS][2];

    // Ask the cache for all of a block's rows; the launch before need not have ended.
    static __device__ void ask(const Call &call, const Part &part, int warp) {
        if (threadIdx.x % 32) return;
        for (int row = warp; row < STREAMS * ROWS; row += THREADS / 32) {
            const float *const from = call.fn + (long long)row * call.width + part.first;
            ask_cache_for_row(from, WIDE * sizeof(float));
        }
    }

    // While one eight lines are split, the next are on their way.
    __device__ void load(const Call &call, const Part &part, WideShared<EIGHTS> &shared, int nth) {
        float2 asked[2][WIDE_STEPS][2];
        read(call, part, nth, 0, asked[0]);
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) {
            if (eight + 1 < EIGHTS) read(call, part, nth, eight + 1, asked[(eight + 1) % 2]);
            keep(shared, nth, eight, asked[eight % 2]);
        }
    }

    static __device__ __forceinline__ void read(const Call &call, const Part &part, int nth,
                                                int eight, float2 (&to)[WIDE_STEPS][2]) {
        const int lane = threadIdx.x % 32, stream = nth % STREAMS, line = eight * 8 + lane / 4;
        const int channel = nth / STREAMS * (WIDE / 2) + lane % 4 * 2;
        const float *const from = call.fn + part.first + channel +
                                  (long long)(line * STREAMS + stream) * call.width;
#pragma unroll
        for (int i = 0; i < WIDE_STEPS * 2; i++) {
            to[i / 2][i % 2] = read_or_zero(from + i * 8, line < ROWS);
        }
    }

    __device__ __forceinline__ void keep(WideShared<EIGHTS> &shared, int nth, int eight,
                                         const float2 (&f)[WIDE_STEPS][2]) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 0; step < WIDE_STEPS; step++) {
            unsigned(&mine)[2] = high[step][eight], second[2], third[2];
            split(f[step][0], mine[0], second[0], third[0]);
            split(f[step][1], mine[1], second[1], third[1]);
            shared.least[nth][step][eight][lane] = {third[0], third[1]};
            if (step < KEPT_STEPS) {
                middle[step][eight][0] = second[0];
                middle[step][eight][1] = second[1];
            } else {
                shared.middle[nth][step - KEPT_STEPS][eight][lane] = {second[0], second[1]};
            }
        }
    }

    // Multiply 16 channels.
    __device__ __forceinline__ void multiply_step(const WideShared<EIGHTS> &shared, int nth,
                                                  int step, const unsigned (&x)[4],
                                                  float (&sums)[EIGHTS][4]) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) multiply(sums[eight], x, high[step][eight]);
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) {
            if (step < KEPT_STEPS) {
                multiply(sums[eight], x, middle[step][eight]);
            } else {
                const uint2 second = shared.middle[nth][step - KEPT_STEPS][eight][lane];
                multiply(sums[eight], x, {second.x, second.y});
            }
        }
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) {
            const uint2 third = shared.least[nth][step][eight][lane];
            multiply(sums[eight], x, {third.x, third.y});
        }
    }

    // Split two numbers into three parts each.
    static __device__ void split(float2 f, unsigned &first, unsigned &second, unsigned &third) {
        first = pack(f.x, f.y);
        const float x = f.x - low_of(first), y = f.y - high_of(first);
        second = pack(x, y);
        third = pack(x - low_of(second), y - high_of(second));
    }
};

template <int EIGHTS>
__device__ inline void run_wide_multiplier(const Call &call, const Part &part,
                                           WideShared<EIGHTS> &shared, int nth) {
    const int lane = threadIdx.x % 32;
    // Lanes name rows 0 to 15 of the first eight channels, then of the second.
    const int at = lane % 16 * WIDE_TOKEN + nth % STREAMS * WIDE_ROW + nth / STREAMS * WIDE +
                   lane / 16 * 16;
    WideWeights<EIGHTS> weights;
    weights.load(call, part, shared, nth);
    Turn<WideShared<EIGHTS>::COUNT> turn;
    Turn<1> parts;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; tile++, turn.advance(), parts.advance()) {
        float sums[EIGHTS][4] = {}, squares[2] = {};
        await_phase(&shared.full[turn.slot], turn.phase);
        const unsigned char *const streams = shared.streams[turn.slot] + at;
        // What is multiplied next is on the way meanwhile.
        unsigned a[2][4];
        load_matrices(a[0], streams);
#pragma unroll
        for (int step = 0; step < WIDE_STEPS; step++) {
            const unsigned(&x)[4] = a[step % 2];
            if (step + 1 < WIDE_STEPS) load_matrices(a[(step + 1) % 2], streams + (step + 1) * 32);
            weights.multiply_step(shared, nth, step, x, sums);
            add_squares(squares, x);
        }
        await_phase(&shared.added, parts.phase ^ 1);
        write_parts(shared, sums, squares);
        __syncwarp();
        if (lane == 0) arrive(&shared.summed);
    }
}

// Groups of eight channels that a lane mixes of a row; of the last some lanes have none.
constexpr int LANE_EIGHTS = (ROW_EIGHTS + 31) / 32;

// The `j`th of a lane; one that is beyond the row stands for the last, and nothing is made of it.
struct WideEight {
    int eight;
    bool exists;

    __device__ explicit WideEight(int j) {
        const int place = threadIdx.x % 32 + j * 32;
        eight = min(place, ROW_EIGHTS - 1);
        exists = place < ROW_EIGHTS;
    }
};

// What a mixer mixed of its tokens.
struct WideMixed {
    uint4 eights[EACH][LANE_EIGHTS] = {};

    // Norm and store all tokens before the last. A lane has the factor of the token with its own
    // number modulo four.
    __device__ void norm(const Call &call, const Part &part, int token, float mine,
                         const float (&gains)[WIDE]) const {
        float factors[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) factors[i] = __shfl_sync(ALL, mine, i);
#pragma unroll
        for (int j = 0; j < LANE_EIGHTS; j++) {
            const WideEight mine(j);
            const int eight = mine.eight, channel = part.first + eight * 8;
            const float4 *const from = reinterpret_cast<const float4 *>(gains + eight * 8);
            const float4 a = from[0], b = from[1];
            const float gain[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                store_if(call.mixed + (long long)(token + i) * call.width + channel,
                         norm_channels(eights[i][j], factors[i], gain),
                         mine.exists && token + i < call.tokens);
            }
        }
    }
};

// Copy the gains of a block's channels into shared memory; each mixer writes the same.
__device__ inline void keep_gain(const Call &call, const Part &part, float (&gains)[WIDE]) {
    const int lane = threadIdx.x % 32;
    for (int i = lane; i < WIDE; i += 32) gains[i] = __ldg(call.weight + part.first + i);
    __syncwarp();
}

// Copy a mixer's tokens of a tile into a slot, a lane what it mixes. What is beyond the last token
// stays as it is.
template <int EIGHTS>
__device__ inline void fetch_wide(const Call &call, const Part &part, WideShared<EIGHTS> &shared,
                                  int first, int tile, int slot) {
    const int lane = threadIdx.x % 32, start = part.token(tile) + first;
    unsigned char *to = shared.streams[slot] + first * WIDE_TOKEN + lane * 16;
    const __nv_bfloat16 *from = call.streams + start * call.token_stride + part.first + lane * 8;
#pragma unroll 1
    for (int i = 0; i < EACH; i++) {
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++) {
            const __nv_bfloat16 *const x = from + stream * call.stream_stride;
#pragma unroll
            for (int j = 0; j < LANE_EIGHTS; j++) {
                const bool copies = start + i < call.tokens && lane + j * 32 < ROW_EIGHTS;
                copy_if(to + stream * WIDE_ROW + j * 512, x + j * 256, copies);
            }
        }
        to += WIDE_TOKEN;
        from += call.token_stride;
    }
    arrive_with_copies(&shared.full[slot]);
}

// Mix a tile when its gates are there, and norm it when the squares of all blocks are; meanwhile
// the next tile of the slot is fetched.
template <bool NORM, int EIGHTS>
__device__ inline void run_wide_mixer(const Call &call, const Part &part,
                                      WideShared<EIGHTS> &shared, int nth) {
    const int lane = threadIdx.x % 32, first = nth * EACH;
    constexpr int COUNT = WideShared<EIGHTS>::COUNT;
    const bool expects = nth == 0 && lane == 0;
#pragma unroll 1
    for (int tile = 0; tile < min(COUNT, part.tiles); tile++) {
        fetch_wide(call, part, shared, first, tile, tile);
    }
    if constexpr (NORM) keep_gain(call, part, shared.gain);
    Turn<COUNT> turn;
    Turn<WideShared<EIGHTS>::NORM_COUNT> norming;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; tile++, turn.advance(), norming.advance()) {
        const int slot = turn.slot, token = part.token(tile) + first;
        if (expects) expect_bytes(&shared.gated[slot], TOKENS * sizeof(float4));
        if (NORM && expects) {
            expect_bytes(&shared.normed[norming.slot], TOKENS * part.ranks * sizeof(float));
        }
        await_phase(&shared.full[slot], turn.phase);
        await_phase(&shared.gated[slot], turn.phase);
        const unsigned char *const streams = shared.streams[slot] + first * WIDE_TOKEN;
        WideMixed mixed;
        float squares[EACH] = {};
#pragma unroll(NORM ? EACH : 1)
        for (int i = 0; i < EACH; i++) {
            const float4 gates = shared.gates[slot][first + i];
#pragma unroll
            for (int j = 0; j < LANE_EIGHTS; j++) {
                const WideEight mine(j);
                const int channel = part.first + mine.eight * 8;
                const uint4 x =
                    mix_token<WIDE_ROW>(streams + i * WIDE_TOKEN + mine.eight * 16, gates);
                if constexpr (NORM) {
                    mixed.eights[i][j] = x;
                    squares[i] += mine.exists ? squares_of(x) : 0.0f;
                } else {
                    store_if(call.mixed + (long long)(token + i) * call.width + channel, x,
                             mine.exists && token + i < call.tokens);
                }
            }
        }
        if constexpr (NORM) {
            float sums[1] = {fold_four(squares)};
            add_eight(sums);
            send_squares(part, shared, norming.slot, first, sums[0]);
        }
        if (tile + COUNT < part.tiles) fetch_wide(call, part, shared, first, tile + COUNT, slot);
        if constexpr (NORM) {
            await_phase(&shared.normed[norming.slot], norming.phase);
            float sums[1] = {told_squares(part, shared, norming.slot, first)};
            add_eight(sums);
            mixed.norm(call, part, token, norm_factor(call, sums[0]), shared.gain);
        }
    }
}
