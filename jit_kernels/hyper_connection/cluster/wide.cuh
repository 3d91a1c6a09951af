// Streams of 7,168 channels, 448 a block. A multiplier has half of the block's channels of one
// stream, and no registers for more: mixers mix in the result that is owed.
#pragma once

#include "courier.cuh"
#include "pay.cuh"

constexpr int WIDE = 448;
// Products of a multiplier, 16 channels each.
constexpr int WIDE_STEPS = WIDE / 2 / 16;
static_assert(MULTIPLIERS == 2 * STREAMS && WIDE_STEPS * 32 == WIDE);
// Registers of a thread in each warpgroup: rows of `fn` leave few to the last.
constexpr int WIDE_MULTIPLIER_REGISTERS = 176, WIDE_MIXER_REGISTERS = 120,
              WIDE_OTHER_REGISTERS = 40;
static_assert(2 * WIDE_MULTIPLIER_REGISTERS + WIDE_MIXER_REGISTERS + WIDE_OTHER_REGISTERS ==
              65536 / 128);

template <int EIGHTS>
struct WideShared {
    static constexpr bool OWED = EIGHTS > 1;
    // A slot is filled anew as soon as its tile is mixed: squares of that next tile may come before
    // this one is normed.
    static constexpr int COUNT = 3, NORM_COUNT = COUNT + 1;
    static constexpr int STRIPS = WIDE / STRIP, PIECES = STREAMS;
    static constexpr bool APART = true;
    // Results of the first two tiles come at once. Then the second place keeps what is mixed and not
    // yet normed.
    static constexpr int OWED_TILES = 2, PAYERS = MIXERS;
    static constexpr bool GATER_STORES = false, KEEPS_GAIN = OWED;
    static __device__ int place_of_result(int tile) { return tile == 1; }
    // Of each stream all slots, of each slot its strips, and a line more: a token's lines in streams
    // and in the result, which comes after them, lie so that they are read without conflict.
    static constexpr int TILE_BYTES = STRIPS * STRIP_BYTES;
    alignas(1024) unsigned char streams[STREAMS][COUNT * TILE_BYTES + LINE_BYTES];
    unsigned char results[OWED_TILES][TILE_BYTES];
    alignas(16) float squares[NORM_COUNT][MAX_RANKS][TOKENS];
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
    unsigned long long summed, added, gained;

    __device__ unsigned char *stream(int slot, int j) { return streams[j] + slot * TILE_BYTES; }
    // Where the `chunk`th eight channels of a token lie in a stream of a tile, or in its result, as if
    // that were the last stream.
    static __device__ int place_of(int token, int stream, int chunk) {
        return chunk / 8 * STRIP_BYTES + token * LINE_BYTES + ((chunk ^ (token + stream)) % 8) * 16;
    }
};
static_assert(WideShared<3>::TILE_BYTES % 1024 == 0);
static_assert(sizeof(WideShared<3>::results[1]) == sizeof(__nv_bfloat16[TOKENS][WIDE]));
static_assert(sizeof(WideShared<3>) <= 227 * 1024 && sizeof(WideShared<1>) <= 227 * 1024);

template <int EIGHTS>
using WideWeights = Weights<WIDE_STEPS, EIGHTS, (EIGHTS > 1)>;

template <int EIGHTS>
__device__ inline void run_wide_multiplier(const Call &call, const Part &part,
                                           WideShared<EIGHTS> &shared, int nth,
                                           typename WideWeights<EIGHTS>::Asked &asked) {
    using Memory = WideShared<EIGHTS>;
    const int lane = threadIdx.x % 32, half = nth / STREAMS;
    // Lanes name rows 0 to 15 of the first eight channels, then of the second. The second half
    // begins in the middle of a strip: of each four products the last two are in the next one.
    const int stream = nth % STREAMS;
    const int near = half * (WIDE / 2 / STRIP) * STRIP_BYTES +
                     Memory::place_of(lane % 16, stream, half * 4 + lane / 16);
    const int far = near + half * STRIP_BYTES;
    const auto at = [&](int step) {
        return ((step % 4 < 2 ? near : far) ^ step % 4 * 32) + step / 4 * STRIP_BYTES;
    };
    const WideWeights<EIGHTS> weights(asked);
    Turn<Memory::COUNT> turn;
    Turn<1> parts;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; tile++, turn.advance(), parts.advance()) {
        float sums[EIGHTS][4] = {}, squares[2] = {};
        if constexpr (Memory::OWED) {
            await_phase(&shared.paid[turn.slot], turn.phase);
        } else {
            await_phase(&shared.full[turn.slot][stream], turn.phase);
        }
        const unsigned streams = shared_address(shared.stream(turn.slot, stream));
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

// Where a mixer's lane works: eight lanes have a token, of each strip eight channels each.
struct WideLane {
    int own, token, eight;  // the token among the mixer's and the tile's, the eight of a strip

    __device__ explicit WideLane(int first) {
        const int lane = threadIdx.x % 32;
        own = lane / 8, token = first + own, eight = lane % 8;
    }
};
static_assert(EACH == 4 && STRIP == 64);

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
    const unsigned char *streams[STREAMS];
#pragma unroll
    for (int j = 0; j < STREAMS; j++) {
        streams[j] = shared.stream(slot, j) + Memory::place_of(mine.token, j, mine.eight);
    }
    float squares = 0.0f;
#pragma unroll
    for (int strip = 0; strip < Memory::STRIPS; strip++) {
        uint4 channels[STREAMS];
#pragma unroll
        for (int j = 0; j < STREAMS; j++) {
            channels[j] = *reinterpret_cast<const uint4 *>(streams[j] + strip * STRIP_BYTES);
        }
        const uint4 x = mix_channels(channels, gates);
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
                           Memory &shared, int tile, Turn<Memory::COUNT> turn, int nth) {
    await_phase(&shared.brought[turn.slot], turn.phase);
    for (auto &full : shared.full[turn.slot]) await_phase(&full, turn.phase);
    pay_tile(shared, turn.slot, Memory::place_of_result(tile), nth * EACH);
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
                pay(call, tensors, part, shared, paid, paying, nth);
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
