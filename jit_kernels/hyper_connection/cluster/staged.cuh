// Streams of 256 channels a block. Rows of `fn` come through slots that no tile has yet, stream by
// stream.
#pragma once

#include <cstddef>

#include "owed.cuh"
#include "staging.cuh"

template <int EIGHTS>
struct ByStreams {
    static constexpr int CHANNELS = SLICE, STAGES = STREAMS, COUNT = ROWS<EIGHTS>;

    static __device__ int row_of_fn(int stream, int line) { return line * STREAMS + stream; }
    static __device__ float *begin(Shared<EIGHTS> &shared) {
        return reinterpret_cast<float *>(shared.streams[Shared<EIGHTS>::STAGE]);
    }
};

static_assert(offsetof(Shared<3>, squares) == sizeof(Shared<3>::streams));
static_assert(STAGED_BYTES<ByStreams<3>> <=
              (Shared<3>::COUNT - Shared<3>::STAGE) * sizeof(Shared<3>::streams[0]) +
                  sizeof(Shared<3>::squares));

// Take a multiplier's rows of a stream from where they are staged.
template <int EIGHTS>
__device__ __forceinline__ void take_rows(Shared<EIGHTS> &shared, int stream,
                                          Weights<EIGHTS> &weights) {
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

// Take the rows of `fn`, then multiply tiles.
template <int EIGHTS>
__device__ inline void run_staged_multiplier(const Call &call, const Part &part,
                                             Shared<EIGHTS> &shared, int nth) {
    // Always so; where the compiler knows it, it runs out of registers.
    const bool works = nth * PIECE < call.slice;
    Weights<EIGHTS> weights;
#pragma unroll
    for (int stream = 0; stream < STREAMS; stream++) take_rows(shared, stream, weights);
    Turn<Shared<EIGHTS>::COUNT> turn;
    Turn<Shared<EIGHTS>::OWED_TILES> owed;
    Turn<1> parts;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; tile++) {
        float sums[CHAINS][EIGHTS][4] = {}, squares[2] = {};
        unsigned char *const streams = shared.streams[turn.slot];
        if constexpr (Shared<EIGHTS>::OWED) await_phase(&shared.brought[turn.slot], turn.phase);
        await_phase(&shared.full[turn.slot][nth * PIECE / STRIP], turn.phase);
        if (works) {
            if constexpr (Shared<EIGHTS>::OWED) {
                multiply_owed(weights, streams, shared.results[owed.slot], shared.owed[owed.slot],
                              sums, squares);
                // The gater has what was mixed copied.
                show_to_copies();
                __syncwarp();
                if (threadIdx.x % 32 == 0) arrive(&shared.paid[turn.slot]);
            } else {
                multiply_streams(weights, streams, sums, squares);
            }
        }
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) sums[0][i / 4][i % 4] += sums[1][i / 4][i % 4];
        leave_sums(shared, parts.phase, sums[0], squares);
        turn.advance();
        owed.advance();
        parts.advance();
    }
}

// Fetch tiles; into slots that `fn` comes through when multipliers have taken it from there.
template <int EIGHTS>
__device__ inline void run_staged_courier(const Call &call, const Tensors &tensors,
                                          const Part &part, Shared<EIGHTS> &shared) {
    constexpr int BYTES = STAGED_BYTES<ByStreams<EIGHTS>> / STREAMS;
    int stage = 0;
    run_courier<(EIGHTS > 1)>(call, tensors, part, shared, [&](int slot) {
        // Stages that begin before this slot ends.
        const int end = (slot + 1 - Shared<EIGHTS>::STAGE) * (int)sizeof(shared.streams[0]);
        for (; stage < STREAMS && stage * BYTES < end; stage++) {
            await_phase(&shared.unstaged[stage], 0);
        }
    });
}
