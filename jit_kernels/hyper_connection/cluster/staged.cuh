// Streams of 256 channels a block. Rows of `fn` come through slots that no tile has yet, stream by
// stream.
#pragma once

#include <cstddef>

#include "staging.cuh"

// The first slot that rows of `fn` come through.
constexpr int STAGE = 3;

template <int EIGHTS>
struct ByStreams {
    static constexpr int CHANNELS = SLICE, STAGES = STREAMS, COUNT = ROWS<EIGHTS>;

    static __device__ int row_of_fn(int stream, int line) { return line * STREAMS + stream; }
    static __device__ float *begin(Shared &shared) {
        return reinterpret_cast<float *>(shared.streams[STAGE]);
    }
};
static_assert(offsetof(Shared, squares) == SLOTS * TILE_BYTES);
static_assert(STAGED_BYTES<ByStreams<3>> <= (SLOTS - STAGE) * TILE_BYTES + sizeof(Shared::squares));

// Take a multiplier's rows of a stream from where they are staged.
template <int EIGHTS>
__device__ __forceinline__ void take_rows(Shared &shared, int stream, Weights<EIGHTS> &weights) {
    constexpr int WORDS = STEPS * 2;
    const int lane = threadIdx.x % 32, channel = threadIdx.x / 32 * PIECE + lane % 4 * 2;
    await_phase(&shared.staged[stream], 0);
#pragma unroll
    for (int i = 0; i < EIGHTS * WORDS; i++) {
        const int eight = i / WORDS, word = i % WORDS, line = eight * 8 + lane / 4;
        float2 f = {0.0f, 0.0f};
        if (line < ROWS<EIGHTS>) {
            const float *const from = staged_row<ByStreams<EIGHTS>>(shared, stream, line) + channel;
            f = *reinterpret_cast<const float2 *>(from + word * 8);
        }
        weights.split(stream, eight, word, f);
    }
    leave_stage(shared, stream);
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
        if (slot != STAGE) return;
        for (auto &unstaged : shared.unstaged) await_phase(&unstaged, 0);
    });
}
