// Streams of 7,168 channels, 448 a block. A multiplier has half of the block's channels of one
// stream, and no registers for more: mixers mix in the result that is owed. Rows of `fn` come through
// all slots, eight lines of all streams after the other.
#pragma once

#include <cstddef>

#include "owed.cuh"
#include "staging.cuh"

constexpr int WIDE = 448;
// Products of a multiplier, 16 channels each.
constexpr int WIDE_STEPS = WIDE / 2 / 16;
static_assert(MULTIPLIERS == 2 * STREAMS && WIDE_STEPS * 32 == WIDE);
// Registers of a thread in each warpgroup: all rows of `fn` leave few to others.
template <int EIGHTS>
constexpr int WIDE_MULTIPLIER_REGISTERS = EIGHTS == 1 ? 176 : 200;
template <int EIGHTS>
constexpr int WIDE_MIXER_REGISTERS = EIGHTS == 1 ? 96 : 72;
template <int EIGHTS>
constexpr int WIDE_OTHER_REGISTERS = EIGHTS == 1 ? 64 : 40;
template <int EIGHTS>
constexpr int WIDE_REGISTERS = 2 * WIDE_MULTIPLIER_REGISTERS<EIGHTS> +
                               WIDE_MIXER_REGISTERS<EIGHTS> + WIDE_OTHER_REGISTERS<EIGHTS>;
static_assert(WIDE_REGISTERS<1> == 65536 / 128 && WIDE_REGISTERS<3> == 65536 / 128);

template <int EIGHTS>
struct WideShared {
    static constexpr bool OWED = EIGHTS > 1;
    // A slot is filled anew as soon as its tile is mixed: squares of that next tile may come before
    // this one is normed.
    static constexpr int COUNT = 3, NORM_COUNT = COUNT + 1;
    static constexpr int STRIPS = WIDE / STRIP, PIECES = 1, STAGES = EIGHTS;
    // Results of the first two tiles come at once. Then the second place keeps what is mixed and not
    // yet normed.
    static constexpr int OWED_TILES = 2, PAYERS = MIXERS;
    static constexpr bool GATER_STORES = false, KEEPS_GAIN = OWED;
    static __device__ int place_of_result(int tile) { return tile == 1; }
    unsigned char streams[COUNT][STRIPS * BAND_BYTES];
    // Follows the streams; see `Shared`.
    alignas(16) float squares[NORM_COUNT][MAX_RANKS][TOKENS];
    alignas(1024) unsigned char results[OWED_TILES][STRIPS * STRIP_BYTES];
    float4 owed[OWED_TILES][TOKENS][STREAMS + 1];
    alignas(16) float gain[WIDE];
    alignas(16) Parts parts;
    float told[COUNT][TOKENS][TOLD];
    float4 gates[COUNT][TOKENS];
    float folded[2][MIXERS][32];
    float matrices[2][BATCH][STREAMS * STREAMS + 1];
    unsigned long long full[COUNT][PIECES], brought[COUNT];
    unsigned long long heard[COUNT], gated[COUNT], mixed[COUNT], paid[COUNT];
    unsigned long long normed[NORM_COUNT], filled[2], emptied[2];
    unsigned long long staged[STAGES], unstaged[STAGES], summed, added, gained;
};
static_assert(sizeof(WideShared<3>::results[1]) == sizeof(__nv_bfloat16[TOKENS][WIDE]));
static_assert(sizeof(WideShared<3>) <= 227 * 1024 && sizeof(WideShared<1>) <= 227 * 1024);

// Eight lines of all streams are a stage, or the four of the head. The last stage ends among squares.
template <int EIGHTS>
struct ByEights {
    static constexpr int EACH = ROWS<EIGHTS> / EIGHTS;
    static constexpr int CHANNELS = WIDE, STAGES = EIGHTS, COUNT = STREAMS * EACH;

    static __device__ int row_of_fn(int eight, int nth) {
        return (eight * EACH + nth % EACH) * STREAMS + nth / EACH;
    }
    static __device__ float *begin(WideShared<EIGHTS> &shared) {
        return reinterpret_cast<float *>(shared.streams);
    }
};
static_assert(offsetof(WideShared<3>, squares) == sizeof(WideShared<3>::streams));
static_assert(STAGED_BYTES<ByEights<3>> <=
              sizeof(WideShared<3>::streams) + sizeof(WideShared<3>::squares));
// No stage begins before the slot of its own number, which may be filled when it has been taken.
static_assert(STAGED_BYTES<ByEights<3>> >= sizeof(WideShared<3>::streams));

// A multiplier's rows of `fn`, as products take them.
template <int EIGHTS>
struct WideWeights {
    unsigned parts[WIDE_STEPS][EIGHTS][PARTS][2];

    // Take them from where they are staged.
    __device__ __forceinline__ void take(WideShared<EIGHTS> &shared, int nth) {
        using Rows = ByEights<EIGHTS>;
        const int lane = threadIdx.x % 32, stream = nth % STREAMS, line = lane / 4;
        const int channel = nth / STREAMS * (WIDE / 2) + lane % 4 * 2;
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) {
            await_phase(&shared.staged[eight], 0);
            const float *const from =
                staged_row<Rows>(shared, eight, stream * Rows::EACH + line % Rows::EACH) + channel;
#pragma unroll
            for (int i = 0; i < WIDE_STEPS * 2; i++) {
                float2 f = *reinterpret_cast<const float2 *>(from + i * 8);
                if (line >= Rows::EACH) f = {0.0f, 0.0f};
                unsigned pairs[PARTS];
                split_pair(f, pairs);
#pragma unroll
                for (int p = 0; p < PARTS; p++) parts[i / 2][eight][p][i % 2] = pairs[p];
            }
            leave_stage(shared, eight);
        }
    }

    // Multiply 16 channels.
    __device__ __forceinline__ void multiply_step(int step, const unsigned (&x)[4],
                                                  float (&sums)[EIGHTS][4]) const {
#pragma unroll
        for (int p = PARTS - 1; p >= 0; p--) {
#pragma unroll
            for (int eight = 0; eight < EIGHTS; eight++) {
                multiply(sums[eight], x, parts[step][eight][p]);
            }
        }
    }
};

template <int EIGHTS>
__device__ inline void run_wide_multiplier(const Call &call, const Part &part,
                                           WideShared<EIGHTS> &shared, int nth) {
    using Memory = WideShared<EIGHTS>;
    const int lane = threadIdx.x % 32, half = nth / STREAMS;
    // Lanes name rows 0 to 15 of the first eight channels, then of the second. The second half
    // begins in the middle of a strip: of each four products the last two are in the next one.
    const int near = nth % STREAMS * STRIP_BYTES + half * (WIDE / 2 / STRIP) * BAND_BYTES +
                     place_of(lane % 16, half * 4 + lane / 16);
    const int far = near + half * BAND_BYTES;
    const auto at = [&](int step) {
        return ((step % 4 < 2 ? near : far) ^ step % 4 * 32) + step / 4 * BAND_BYTES;
    };
    WideWeights<EIGHTS> weights;
    weights.take(shared, nth);
    Turn<Memory::COUNT> turn;
    Turn<1> parts;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; tile++, turn.advance(), parts.advance()) {
        float sums[EIGHTS][4] = {}, squares[2] = {};
        if constexpr (Memory::OWED) {
            await_phase(&shared.paid[turn.slot], turn.phase);
        } else {
            await_phase(&shared.full[turn.slot][0], turn.phase);
        }
        const unsigned streams = shared_address(shared.streams[turn.slot]);
        // What is multiplied next is on the way meanwhile.
        unsigned a[2][4];
        load_matrices(a[0], streams + at(0));
#pragma unroll
        for (int step = 0; step < WIDE_STEPS; step++) {
            const unsigned(&x)[4] = a[step % 2];
            if (step + 1 < WIDE_STEPS) load_matrices(a[(step + 1) % 2], streams + at(step + 1));
            weights.multiply_step(step, x, sums);
            add_squares(squares, x);
        }
        leave_sums(shared, parts.phase, sums, squares);
    }
}

// Where a mixer's lane works: eight lanes have a token, of each strip eight channels each. What is long
// stands once in code, in loops over strips: side by side it is more than the instruction cache holds.
struct WideLane {
    int own, token, eight;  // the token among the mixer's and the tile's, the eight of a strip

    __device__ explicit WideLane(int first) {
        const int lane = threadIdx.x % 32;
        own = lane / 8, token = first + own, eight = lane % 8;
    }
    // Where its channels of the first strip lie in a stream of a tile; the next ones follow.
    __device__ int place() const { return place_of(token, eight); }
};
static_assert(EACH == 4 && STRIP == 64);

// Mix the result that is owed into a mixer's tokens of a tile, in place.
template <class Memory>
__device__ inline void pay_tile(Memory &shared, int slot, int place, WideLane mine) {
    const Shares shares(shared.owed[place][mine.token]);
    unsigned char *const streams = shared.streams[slot] + mine.place();
    const unsigned char *const result = shared.results[place] + mine.place();
#pragma unroll 1
    for (int strip = 0; strip < Memory::STRIPS; strip++) {
        unsigned x[STREAMS][4], y[4];
        const auto at = [&](int j) { return streams + j * STRIP_BYTES + strip * BAND_BYTES; };
        const auto load = [](const unsigned char *from, unsigned(&to)[4]) {
            const uint4 four = *reinterpret_cast<const uint4 *>(from);
            to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
        };
        load(result + strip * STRIP_BYTES, y);
#pragma unroll
        for (int j = 0; j < STREAMS; j++) load(at(j), x[j]);
#pragma unroll
        for (int pair = 0; pair < 4; pair++) mix_pair(shares, x, y, pair);
#pragma unroll
        for (int j = 0; j < STREAMS; j++) {
            *reinterpret_cast<uint4 *>(at(j)) = make_uint4(x[j][0], x[j][1], x[j][2], x[j][3]);
        }
    }
}

// Where a lane's channels of a token of all are stored, and whether there is such a token.
struct WideRow {
    __nv_bfloat16 *to;
    bool live;

    __device__ WideRow(const Call &call, const Part &part, int tile, WideLane mine) {
        const int token = part.token(tile) + mine.token;
        to = call.mixed + (long long)token * call.width + part.first + mine.eight * 8;
        live = token < call.tokens;
    }
    __device__ void store(int strip, uint4 x) const { store_if(to + strip * STRIP, x, live); }
};

// Mix a mixer's tokens of a tile; store them, or keep them until they are normed and return the sum
// of a lane's squares.
template <bool NORM, class Memory>
__device__ inline float mix_wide_tile(Memory &shared, int slot, WideLane mine, const WideRow &row,
                                      __nv_bfloat16 *kept) {
    const float4 gates = shared.gates[slot][mine.token];
    const unsigned char *const streams = shared.streams[slot] + mine.place();
    float squares = 0.0f;
#pragma unroll 1
    for (int strip = 0; strip < Memory::STRIPS; strip++) {
        const uint4 x = mix_token(streams + strip * BAND_BYTES, gates);
        if constexpr (NORM) {
            squares += squares_of(x);
            *reinterpret_cast<uint4 *>(kept + strip * STRIP) = x;
        } else {
            row.store(strip, x);
        }
    }
    return squares;
}

// Norm and store what a lane kept.
__device__ inline void norm_kept(const WideRow &row, float factor, WideLane mine,
                                 const __nv_bfloat16 *kept, const float (&gains)[WIDE]) {
#pragma unroll
    for (int strip = 0; strip < WIDE / STRIP; strip++) {
        const float4 *const from =
            reinterpret_cast<const float4 *>(gains + strip * STRIP + mine.eight * 8);
        const float4 a = from[0], b = from[1];
        const float gain[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        const uint4 x = *reinterpret_cast<const uint4 *>(kept + strip * STRIP);
        row.store(strip, norm_channels(x, factor, gain));
    }
}

// Mix what is owed into a tile when it is there, and have it copied to memory. Where the result lay
// another may come.
template <class Memory>
__device__ inline void pay(const Call &call, const Tensors &tensors, const Part &part,
                           Memory &shared, int tile, Turn<Memory::COUNT> turn, int nth,
                           WideLane mine) {
    await_phase(&shared.brought[turn.slot], turn.phase);
    await_phase(&shared.full[turn.slot][0], turn.phase);
    pay_tile(shared, turn.slot, Memory::place_of_result(tile), mine);
    show_to_copies();
    meet_warpgroup();
    if (threadIdx.x % 32 == 0) {
        arrive(&shared.paid[turn.slot]);
        if (nth == 0) {
            const int next = tile == 0 ? 2 : tile + 1;
            if (tile != 1 && next < part.tiles) {
                fetch_result(call, tensors.result, part, shared, next, next % Memory::COUNT);
            }
            store_tile(tensors.after, part, shared, tile, turn.slot);
        }
    }
    __syncwarp();
}

// Mix results into tiles; mix tiles when their gates are there, and tell the courier. As many tiles as
// there are slots have their results mixed in before the first has gates, then one while the squares
// of another are on their way.
template <bool NORM, int EIGHTS>
__device__ inline void run_wide_mixer(const Call &call, const Tensors &tensors, const Part &part,
                                      WideShared<EIGHTS> &shared, int nth) {
    using Memory = WideShared<EIGHTS>;
    const int lane = threadIdx.x % 32, first = nth * EACH;
    const WideLane mine(first);
    __nv_bfloat16 *const kept =
        reinterpret_cast<__nv_bfloat16(*)[WIDE]>(shared.results[1])[mine.token] + mine.eight * 8;
    if (NORM && nth == 0 && lane == 0) {
        expect_bytes(&shared.gained, sizeof(shared.gain));
        bulk_copy(shared.gain, call.weight + part.first, sizeof(shared.gain), &shared.gained);
    }
    int paid = 0;
    Turn<Memory::COUNT> paying, turn;
    Turn<2> mixing;
    Turn<Memory::NORM_COUNT> norming;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles + 2 * NORM; tile++) {
        if constexpr (NORM) {
#pragma unroll 1
            for (; paid < min(part.tiles, max(Memory::COUNT, tile + 1)); paid++) {
                pay(call, tensors, part, shared, paid, paying, nth, mine);
                paying.advance();
            }
            if (tile >= 2) {
                await_phase(&shared.gained, 0);
                await_phase(&shared.normed[norming.slot], norming.phase);
                const Factors factors(call, part, shared.squares[norming.slot], first);
                const WideRow row(call, part, tile - 2, mine);
                norm_kept(row, factors.of(mine.own), mine, kept, shared.gain);
                norming.advance();
            }
        }
        if (NORM && (tile == 0 || tile > part.tiles)) continue;
        await_phase(&shared.gated[turn.slot], turn.phase);
        const WideRow row(call, part, tile - NORM, mine);
        const float squares = mix_wide_tile<NORM>(shared, turn.slot, mine, row, kept);
        if constexpr (NORM) {
            shared.folded[mixing.slot][nth][mine.eight * EACH + mine.own] = squares;
            // Before the slot is filled anew it has been copied; that of the next tile may still be.
            if (nth == 0 && lane == 0) {
                if (tile < part.tiles) await_boxes_read<1>();
                else await_boxes_read<0>();
            }
        }
        __syncwarp();
        if (lane == 0) arrive(&shared.mixed[turn.slot]);
        turn.advance();
        mixing.advance();
    }
}

// Fetch tiles, each into a slot that multipliers have taken `fn` from.
template <int EIGHTS>
__device__ inline void run_wide_courier(const Call &call, const Tensors &tensors,
                                        const Part &part, WideShared<EIGHTS> &shared) {
    run_courier<(EIGHTS > 1)>(call, tensors, part, shared, [&](int slot) {
        if (slot < EIGHTS) await_phase(&shared.unstaged[slot], 0);
    });
}
