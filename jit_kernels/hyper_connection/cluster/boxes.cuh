// What is copied box by box between memory and a slot; all by one thread.
#pragma once

#include "layout.cuh"

// Streams, the result that is owed to them, and what they become by it.
struct Tensors {
    CUtensorMap streams, result, after;
};

// Ask the L2 cache for a tile and what is owed to it.
template <class Memory>
__device__ inline void bring_tile(const Call &call, const Tensors &tensors, const Part &part,
                                  int tile) {
    const int token = part.token(tile), first = part.first / STRIP;
    const int pieces = Memory::APART && call.same ? 1 : Memory::PIECES;
#pragma unroll 1
    for (int piece = 0; piece < pieces; piece++) {
        bring_box(tensors.streams, 0, token, Memory::APART ? piece : 0,
                  Memory::APART ? first : first + piece);
    }
    if (Memory::OWED) bring_box(tensors.result, 0, token, 0, first);
}

// Fetch a tile into a slot, and expect its gates: piece by piece, which is a strip of all
// streams, or a stream. Beyond the last token there are zeros.
template <class Memory>
__device__ inline void fetch_tile(const Call &call, const CUtensorMap &streams, const Part &part,
                                  Memory &shared, int tile, int slot) {
    expect_bytes(&shared.gated[slot], TOKENS * sizeof(float4));
    const int token = part.token(tile), first = part.first / STRIP;
#pragma unroll 1
    for (int piece = 0; piece < Memory::PIECES; piece++) {
        unsigned long long *const full = &shared.full[slot][piece];
        expect_bytes(full, Memory::STRIPS * BAND_BYTES / Memory::PIECES);
        if constexpr (Memory::APART) {
            copy_box(shared.stream(slot, piece), streams, 0, token, call.same ? 0 : piece, first,
                     full);
        } else {
#pragma unroll 1
            for (int j = 0; j < (call.same ? STREAMS : 1); j++) {
                copy_box(shared.stream(slot, j) + piece * BAND_BYTES, streams, 0, token, 0,
                         first + piece, full);
            }
        }
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
#pragma unroll 1
    for (int j = 0; j < (Memory::APART ? STREAMS : 1); j++) {
        store_box(shared.stream(slot, j), after, 0, part.token(tile), j, part.first / STRIP);
    }
    close_boxes();
}
