// Streams of 256 channels a block. Rows of `fn` come through slots that no tile has yet, whole rows
// at a time; warps of their own add up what multipliers leave, while they multiply the next tile.
#pragma once

#include <cstddef>

#include "mix.cuh"
#include "multiply.cuh"

// The first slot that rows of `fn` come through. They begin 32 bytes apart, modulo 128: half a warp
// reads four of them without conflict.
constexpr int STAGE = 3, STAGE_FLOATS = SLICE + 8;
static_assert(offsetof(Shared, squares) == SLOTS * TOKENS * TOKEN_BYTES);
static_assert(STREAMS * LINES * STAGE_FLOATS * 4 <=
              (SLOTS - STAGE) * TOKENS * TOKEN_BYTES + sizeof(Shared::squares));
// Sums of a line that a multiplier has in turn.
constexpr int CHAINS = 2;

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

// Copy the block's channels of `fn` when the launch before has ended, which may write it; until
// then the cache is asked for them. Each warp takes some rows. Barriers are there afterwards.
template <int EIGHTS>
__device__ inline void stage_rows(const Call &call, const Part &part, Shared &shared, int warp) {
    constexpr int ROWS = Weights<EIGHTS>::ROWS, WARPS = THREADS / 32;
    static_assert(STREAMS * ROWS % WARPS == 0);
    const bool first = threadIdx.x % 32 == 0;
    const unsigned bytes = SLICE * sizeof(float);
    const auto source = [&](int row) {
        const int stream = row / ROWS, line = row % ROWS;
        return call.fn + (long long)(line * STREAMS + stream) * call.width + part.first;
    };
#pragma unroll
    for (int row = 0; row < STREAMS * ROWS; row += WARPS) {
        if (first) ask_cache_for_row(source(row + warp), bytes);
    }
    await_launch_before();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < STREAMS * ROWS; i += WARPS) {
        const int row = i + warp;
        if (first) bulk_copy(stage_row(shared, row), source(row), bytes, &shared.staged[row / ROWS]);
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

    __device__ void multiply(const Weights<EIGHTS> &weights, int begin, int end,
                             const unsigned char *streams) {
        multiply_streams(weights, begin, end, streams, lines, squares);
    }

    // Leave them to the adder when it has added up the tile before.
    __device__ void leave(Shared &shared, unsigned phase) {
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) lines[0][i / 4][i % 4] += lines[1][i / 4][i % 4];
        await_phase(&shared.added, phase ^ 1);
        write_parts(shared, lines[0], squares);
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&shared.summed);
    }
};

// Multiply tiles; of the first, each stream as soon as its rows of `fn` are there.
template <int EIGHTS>
__device__ inline void run_staged_multiplier(const Call &call, const Part &part, Shared &shared,
                                             int nth) {
    // Always so; where the compiler knows it, it runs out of registers.
    const bool works = nth * PIECE < call.slice;
    Weights<EIGHTS> weights;
    Turn<SLOTS> turn;
    Turn<1> parts;
    Sums<EIGHTS> first;
#pragma unroll
    for (int stream = 0; stream < STREAMS; stream++) {
        take_rows(shared, stream, weights);
        if (stream == 0) await_phase(&shared.full[0], 0);
        if (works) first.multiply(weights, stream, stream + 1, shared.streams[0]);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&shared.unstaged);
    first.leave(shared, 0);
#pragma unroll 1
    for (int tile = 1; tile < part.tiles; tile++) {
        turn.advance();
        parts.advance();
        Sums<EIGHTS> sums;
        await_phase(&shared.full[turn.slot], turn.phase);
        if (works) sums.multiply(weights, 0, STREAMS, shared.streams[turn.slot]);
        sums.leave(shared, parts.phase);
    }
}

// Add up what the multipliers leave, and send it; each adder does its part of a tile.
template <class Memory>
__device__ inline void run_adder(const Part &part, Memory &shared, int adder) {
    const int lane = threadIdx.x % 32;
    Turn<Memory::COUNT> turn;
    Turn<1> parts;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; tile++, turn.advance(), parts.advance()) {
        await_phase(&shared.summed, parts.phase);
#pragma unroll 1
        for (int nth = adder * 32 + lane; nth < TOKENS * FOURS; nth += ADDERS * 32) {
            send_sums(part, shared, turn.slot, nth);
        }
        __syncwarp();
        if (lane == 0) arrive(&shared.added);
    }
}

// Copies a mixer's tokens of tiles into shared memory, a lane the eight channels of each stream
// that it mixes: where it has mixed them, the next tile of the slot may come. What is beyond the
// last token stays as it is, and harms no other token.
struct Refill {
    const Call &call;
    const Part &part;
    Shared &shared;
    int first;

    __device__ Refill(const Call &call, const Part &part, Shared &shared, int nth)
        : call(call), part(part), shared(shared), first(nth * EACH) {}

    // Fill the slots that `fn` does not come through.
    __device__ void start() const {
#pragma unroll 1
        for (int tile = 0; tile < min(STAGE, part.tiles); tile++) fetch(tile, tile);
    }

    // Fill the others when multipliers have taken `fn` from there.
    __device__ void fill() const {
        if (STAGE < part.tiles) await_phase(&shared.unstaged, 0);
#pragma unroll 1
        for (int tile = STAGE; tile < min(SLOTS, part.tiles); tile++) fetch(tile, tile);
    }

    __device__ void fetch(int tile, int slot) const {
        const int lane = threadIdx.x % 32, start = part.token(tile) + first;
        const int live = call.tokens - start;
        unsigned char *to = shared.streams[slot] + first * TOKEN_BYTES + lane * 16;
        const __nv_bfloat16 *from =
            call.streams + start * call.token_stride + part.first + lane * 8;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int stream = 0; stream < STREAMS; stream++) {
                copy_if(to + stream * ROW_BYTES, from + stream * call.stream_stride, i < live);
            }
            to += TOKEN_BYTES;
            from += call.token_stride;
        }
        arrive_with_copies(&shared.full[slot]);
    }

    __device__ void operator()(int tile, int slot) const {
        if (tile + SLOTS < part.tiles) fetch(tile + SLOTS, slot);
    }
};
