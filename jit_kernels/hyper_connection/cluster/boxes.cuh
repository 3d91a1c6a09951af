// What is copied box by box between memory and a slot; all by one thread.
#pragma once

#include "layout.cuh"

// Streams, the result that is owed to them, and what they become by it.
struct Tensors {
    CUtensorMap streams, result, after;
};

// Fetch a tile into a slot, all streams at once unless they are one, and expect its gates. Beyond the
// last token there are zeros.
template <class Memory>
__device__ inline void fetch_tile(const Call &call, const CUtensorMap &streams, const Part &part,
                                  Memory &shared, int tile, int slot) {
    expect_bytes(&shared.gated[slot], TOKENS * sizeof(float4));
    expect_bytes(&shared.full[slot], STREAMS * Memory::STREAM);
    const auto copy = [&](int stream) {
        copy_box(shared.streams[slot] + stream * Memory::STREAM, streams, 0, part.token(tile),
                 part.first / STRIP, 0, &shared.full[slot]);
    };
    copy(0);
    if (call.same) {
#pragma unroll 1
        for (int stream = 1; stream < STREAMS; stream++) copy(stream);
    }
}

// Fetch what is owed to the streams of a tile in a slot. Beyond the last token shares are what they
// are: nothing of such tokens is kept.
template <class Memory>
__device__ inline void fetch_result(const Call &call, const CUtensorMap &result, const Part &part,
                                    Memory &shared, int tile, int slot) {
    const int token = part.token(tile), live = min(call.tokens - token, TOKENS);
    const int place = Memory::place_of_result(tile), bytes = live * SHARES * (int)sizeof(float);
    unsigned long long *const full = &shared.full[slot];
    expect_bytes(full, Memory::STREAM + bytes);
    copy_box(shared.results[place], result, 0, token, part.first / STRIP, 0, full);
    bulk_copy(shared.owed[place], call.owed + (long long)token * SHARES, bytes, full);
}

// Copy streams that a result was mixed into to memory, but for tokens beyond the last one.
template <class Memory>
__device__ inline void store_tile(const CUtensorMap &after, const Part &part, Memory &shared,
                                  int tile, int slot) {
    store_box(shared.streams[slot], after, 0, part.token(tile), part.first / STRIP, 0);
    close_boxes();
}
