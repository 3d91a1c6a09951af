// What is copied box by box between memory and a slot; all by one thread.
#pragma once

#include "layout.cuh"

// Streams, the result that is owed to them, and what they become by it.
struct Tensors {
    CUtensorMap streams, result, after;
};

// Ask the L2 cache for a tile and what is owed to it.
template <class Memory>
__device__ inline void bring_tile(const Tensors &tensors, const Part &part, int tile) {
    const int token = part.token(tile), first = part.first / STRIP;
#pragma unroll 1
    for (int strip = 0; strip < STRIPS; strip++) {
        bring_box(tensors.streams, 0, token, 0, first + strip);
    }
    if (Memory::OWED) bring_box(tensors.result, 0, token, 0, first);
}

// Fetch a tile into a slot, strip by strip of all streams, and expect its gates. Beyond the last token
// there are zeros.
template <class Memory>
__device__ inline void fetch_tile(const Call &call, const CUtensorMap &streams, const Part &part,
                                  Memory &shared, int tile, int slot) {
    expect_bytes(&shared.gated[slot], TOKENS * sizeof(float4));
    const int token = part.token(tile), first = part.first / STRIP;
#pragma unroll 1
    for (int strip = 0; strip < STRIPS; strip++) {
        unsigned long long *const full = &shared.full[slot][strip];
        expect_bytes(full, BAND_BYTES);
#pragma unroll 1
        for (int j = 0; j < (call.same ? STREAMS : 1); j++) {
            copy_box(shared.streams[slot] + j * STRIP_BYTES + strip * BAND_BYTES, streams, 0, token,
                     0, first + strip, full);
        }
    }
}

// Fetch what is owed to the streams of a tile in a slot. Beyond the last token shares are what they
// are: nothing of such tokens is kept.
template <class Memory>
__device__ inline void fetch_result(const Call &call, const CUtensorMap &result, const Part &part,
                                    Memory &shared, int tile, int slot) {
    const int token = part.token(tile), live = min(call.tokens - token, TOKENS);
    const int place = tile % Memory::OWED_TILES, bytes = live * SHARES * (int)sizeof(float);
    unsigned long long *const brought = &shared.brought[slot];
    expect_bytes(brought, STRIPS * STRIP_BYTES + bytes);
    copy_box(shared.results[place], result, 0, token, 0, part.first / STRIP, brought);
    bulk_copy(shared.owed[place], call.owed + (long long)token * SHARES, bytes, brought);
}

// Copy streams that a result was mixed into to memory, but for tokens beyond the last one.
template <class Memory>
__device__ inline void store_tile(const CUtensorMap &after, const Part &part, Memory &shared,
                                  int tile, int slot) {
    store_box(shared.streams[slot], after, 0, part.token(tile), 0, part.first / STRIP);
    close_boxes();
}
