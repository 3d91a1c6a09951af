// The courier: a warp that fetches tiles, and carries what norms them from mixers to blocks.
#pragma once

#include "boxes.cuh"
#include "mix.cuh"

// Send all blocks the squares of this block's channels of a tile. A lane adds up those of the token
// with its own number modulo 16.
template <class Memory>
__device__ inline void send_folded(const Part &part, Memory &shared, int slot,
                                   const float (&folded)[MIXERS][32]) {
    const int lane = threadIdx.x % 32, half = lane / TOKENS, token = lane % TOKENS;
    const float *const from = &folded[token / EACH][half * 16 + token % EACH];
    float sum = (from[0] + from[EACH]) + (from[2 * EACH] + from[3 * EACH]);
    sum += __shfl_xor_sync(ALL, sum, 16);
    const int rank = token;
#pragma unroll
    for (int i = 0; i < TOKENS; i += 8) {
        const int first = i + half * 4;
        const float4 sums = {__shfl_sync(ALL, sum, first), __shfl_sync(ALL, sum, first + 1),
                             __shfl_sync(ALL, sum, first + 2), __shfl_sync(ALL, sum, first + 3)};
        if (rank < part.ranks) {
            send(at_rank(&shared.squares[slot][part.rank][first], rank), sums,
                 at_rank(&shared.normed[slot], rank));
        }
    }
}

// Fetch tiles as slots become free; when a tile is mixed, send its squares. The cluster need not have
// met before.
template <bool NORM, class Memory>
__device__ inline void run_courier(const Call &call, const Tensors &tensors, const Part &part,
                                   Memory &shared) {
    const int lane = threadIdx.x % 32;
    const bool first = lane == 0;
    const auto fetch = [&](int tile, int slot) {
        if (first && tile < part.tiles) fetch_tile(call, tensors.streams, part, shared, tile, slot);
    };
    // The first tile comes near while the launch before ends; others asked for here would hold it up.
    if (first) bring_tile<Memory>(tensors, part, 0);
    // Rows of `fn` need not wait; whatever is written follows from streams.
    take_turn();
#pragma unroll 1
    for (int tile = 0; tile < Memory::COUNT; tile++) {
        // Where each cluster has many, half of the first comes alone: it is there sooner.
        if (tile == 1 && call.least > 2) {
            await_phase(&shared.full[0][(STRIPS - 1) / 2], 0);
        }
        if constexpr (Memory::OWED) {
            if (first && tile < min(part.tiles, Memory::OWED_TILES)) {
                fetch_result(call, tensors.result, part, shared, tile, tile);
            }
        }
        fetch(tile, tile);
    }
    __syncwarp();
    await_cluster();
    Turn<Memory::COUNT> turn;
    Turn<Memory::NORM_COUNT> norming;
    Turn<2> mixing;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; tile++, turn.advance()) {
        await_phase(&shared.mixed[turn.slot], turn.phase);
        if (tile + Memory::COUNT < part.tiles) {
            if constexpr (Memory::OWED) await_phase(&shared.stored[turn.slot], turn.phase);
            fetch(tile + Memory::COUNT, turn.slot);
        }
        if constexpr (NORM) {
            __syncwarp();
            const int slot = norming.slot;
            if (first) expect_bytes(&shared.normed[slot], TOKENS * part.ranks * sizeof(float));
            send_folded(part, shared, slot, shared.folded[mixing.slot]);
            norming.advance();
            mixing.advance();
        }
    }
}
