// What is copied box by box between memory and a slot; all by one thread.
#pragma once

#include "layout.cuh"

// Streams, the result that is owed to them, and what they become by it.
struct Tensors {
    CUtensorMap streams, result, after;
};

// Fetch a tile into a slot piece by piece, all streams at once unless they are one, and expect its
// gates. Beyond the last token there are zeros.
template <class Memory>
__device__ inline void fetch_tile(const Call &call, const CUtensorMap &streams, const Part &part,
                                  Memory &shared, int tile, int slot) {
    constexpr int STEP = Memory::STRIPS / Memory::PIECES;
    expect_bytes(&shared.gated[slot], TOKENS * sizeof(float4));
    const auto copy = [&](int strip, int stream, unsigned long long *full) {
        copy_box(shared.streams[slot] + strip * BAND_BYTES + stream * STRIP_BYTES, streams, 0,
                 part.token(tile), 0, part.first / STRIP + strip, full);
    };
#pragma unroll 1
    for (int first = 0; first < Memory::STRIPS; first += STEP) {
        unsigned long long *const full = &shared.full[slot][first / STEP];
        expect_bytes(full, STEP * BAND_BYTES);
        if (!call.same) {
            copy(first, 0, full);
            continue;
        }
#pragma unroll 1
        for (int i = 0; i < STEP * STREAMS; i++) copy(first + i / STREAMS, i % STREAMS, full);
    }
}

// Fetch what is owed to the streams of a tile in a slot. Beyond the last token shares are what they
// are: nothing of such tokens is kept.
template <class Memory>
__device__ inline void fetch_result(const Call &call, const CUtensorMap &result, const Part &part,
                                    Memory &shared, int tile, int slot) {
    const int token = part.token(tile), live = min(call.tokens - token, TOKENS);
    const int place = Memory::place_of_result(tile), bytes = live * SHARES * (int)sizeof(float);
    unsigned long long *const brought = &shared.brought[slot];
    expect_bytes(brought, Memory::STRIPS * STRIP_BYTES + bytes);
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
