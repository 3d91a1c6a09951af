// Streams of 256 channels a block. Rows of `fn` come through slots that no tile has yet, whole rows
// at a time.
#pragma once

#include <cstddef>

#include "courier.cuh"
#include "multiply.cuh"

// The first slot that rows of `fn` come through.
constexpr int STAGE = 3;
// Rows of `fn` begin 32 bytes apart, modulo 128: half a warp reads four of them without conflict.
constexpr int STAGE_FLOATS = SLICE + 8;
static_assert(offsetof(Shared, squares) == SLOTS * TILE_BYTES);
static_assert(STREAMS * LINES * STAGE_FLOATS * 4 <=
              (SLOTS - STAGE) * TILE_BYTES + sizeof(Shared::squares));

// Where the `row`th row of `fn` is staged, a stream's lines after each other.
__device__ inline float *stage_row(Shared &shared, int row) {
    return reinterpret_cast<float *>(shared.streams[STAGE]) + row * STAGE_FLOATS;
}

// Announce the bytes of all rows of `fn`; one thread.
template <int EIGHTS>
__device__ inline void expect_rows(Shared &shared) {
    const unsigned bytes = Weights<EIGHTS>::ROWS * SLICE * sizeof(float);
    for (int stream = 0; stream < STREAMS; stream++) expect_bytes(&shared.staged[stream], bytes);
}

// Copy the block's channels of `fn`, which no launch writes: the one before need not have ended.
// Each warp takes some rows. Barriers are there.
template <int EIGHTS>
__device__ inline void stage_rows(const Call &call, const Part &part, Shared &shared, int warp) {
    constexpr int ROWS = Weights<EIGHTS>::ROWS, WARPS = THREADS / 32;
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
        for (int row = warp; row < STREAMS * ROWS; row += WARPS) {
            const int stream = row / ROWS, line = row % ROWS;
            const float *const from =
                call.fn + (long long)(line * STREAMS + stream) * call.width + part.first;
            bulk_copy(stage_row(shared, row), from, SLICE * sizeof(float), &shared.staged[stream]);
        }
    }
    __syncwarp();
}

// Take a multiplier's rows of a stream from where they are staged.
template <int EIGHTS>
__device__ __forceinline__ void take_rows(Shared &shared, int stream, Weights<EIGHTS> &weights) {
    constexpr int ROWS = Weights<EIGHTS>::ROWS, WORDS = STEPS * 2;
    const int lane = threadIdx.x % 32, channel = threadIdx.x / 32 * PIECE + lane % 4 * 2;
    await_phase(&shared.staged[stream], 0);
#pragma unroll
    for (int i = 0; i < EIGHTS * WORDS; i++) {
        const int eight = i / WORDS, word = i % WORDS, line = eight * 8 + lane / 4;
        float2 f = {0.0f, 0.0f};
        if (line < ROWS) {
            const float *const from = stage_row(shared, stream * ROWS + line) + channel;
            f = *reinterpret_cast<const float2 *>(from + word * 8);
        }
        weights.split(stream, eight, word, f);
    }
}

// What a multiplier adds up of a tile.
template <int EIGHTS>
struct Sums {
    float lines[CHAINS][EIGHTS][4] = {}, squares[2] = {};

    __device__ void multiply(const Weights<EIGHTS> &weights, const unsigned char *streams) {
        multiply_streams(weights, streams, lines, squares);
    }

    // Leave them to the adder when it has added up the tile before.
    __device__ void leave(Shared &shared, unsigned phase) {
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) lines[0][i / 4][i % 4] += lines[1][i / 4][i % 4];
        await_phase(&shared.added, phase ^ 1);
        write_parts(shared.parts, lines[0], squares);
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&shared.summed);
    }
};

// Take the rows of `fn`, then multiply tiles.
template <int EIGHTS>
__device__ inline void run_staged_multiplier(const Call &call, const Part &part, Shared &shared,
                                             int nth) {
    // Always so; where the compiler knows it, it runs out of registers.
    const bool works = nth * PIECE < call.slice;
    Weights<EIGHTS> weights;
#pragma unroll
    for (int stream = 0; stream < STREAMS; stream++) take_rows(shared, stream, weights);
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&shared.unstaged);
    Turn<SLOTS> turn;
    Turn<1> parts;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; tile++, turn.advance(), parts.advance()) {
        Sums<EIGHTS> sums;
        await_phase(&shared.full[turn.slot], turn.phase);
        if (works) sums.multiply(weights, shared.streams[turn.slot]);
        sums.leave(shared, parts.phase);
    }
}

// Fetch tiles; into slots that `fn` comes through when multipliers have taken it from there.
template <bool NORM>
__device__ inline void run_staged_courier(const Call &call, const CUtensorMap &streams,
                                          const Part &part, Shared &shared) {
    run_courier<NORM>(call, streams, part, shared, [&](int slot) {
        if (slot == STAGE) await_phase(&shared.unstaged, 0);
    });
}
