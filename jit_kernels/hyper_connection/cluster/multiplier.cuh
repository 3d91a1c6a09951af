// The multipliers, which first mix in the result that is owed.
#pragma once

#include "courier.cuh"
#include "owed.cuh"

template <int EIGHTS>
__device__ inline void run_multiplier(const Call &call, const Part &part, Shared<EIGHTS> &shared,
                                      int nth, typename Weights<EIGHTS>::Asked &asked) {
    // Always so; where the compiler knows it, it runs out of registers.
    const bool works = nth * PIECE < call.width;
    const Weights<EIGHTS> weights(asked);
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
