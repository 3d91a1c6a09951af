// The result that is owed to streams, mixed in by products: a channel's five numbers times what each
// gives the four new ones. A product has one token's numbers alone: what is not finite there must not
// meet another token's zero.
#pragma once

#include "layout.cuh"

// A token's shares as products take them, in two bfloat16 parts: 16 bits and a sign. Of eight rows the
// first four are the streams, the others all the result; of sixteen the last take the low parts of the
// streams' shares. Of eight columns four are new streams: of the lower channels the first four, of the
// upper ones the last.
struct OwedShares {
    unsigned lower[2], upper[2];

    // Of a token's shares, those of a lane's two rows.
    static __device__ float2 load(const float4 (&from)[STREAMS + 1]) {
        const int lane = threadIdx.x % 32, row = lane % 4 * 2, column = lane / 4 % STREAMS;
        const auto *const shares = reinterpret_cast<const float(*)[STREAMS]>(from);
        return {shares[min(row, STREAMS)][column], shares[min(row + 1, STREAMS)][column]};
    }
    __device__ explicit OwedShares(float2 loaded) {
        const int lane = threadIdx.x % 32, row = lane % 4 * 2;
        unsigned high = pack(loaded.x, loaded.y);
        unsigned low = pack(loaded.x - low_of(high), loaded.y - high_of(high));
        if (row == STREAMS) high = __byte_perm(high, low, 0x5410);
        if (row > STREAMS) high = 0;
        if (row >= STREAMS) low = 0;
        lower[0] = lane < 16 ? high : 0, lower[1] = lane < 16 ? low : 0;
        upper[0] = lane < 16 ? 0 : high, upper[1] = lane < 16 ? 0 : low;
    }
    // Mix 16 lower channels and 16 upper ones; pair what comes of the first eight of both, and of the
    // others.
    __device__ __forceinline__ void mix(const unsigned (&x)[4], unsigned &first,
                                        unsigned &second) const {
        float sums[4] = {};
        multiply(sums, x[0], x[1], x[0], x[1], lower[0], lower[1]);
        multiply(sums, x[2], x[3], x[2], x[3], upper[0], upper[1]);
        first = pack(sums[0], sums[1]), second = pack(sums[2], sums[3]);
    }
};

// Mix the result that is owed into a mixer's tokens of a tile, in place. Of each strip the lower 32
// channels are mixed beside the upper.
template <class Memory>
__device__ inline void pay_tile(Memory &shared, int slot, int place, int first) {
    const int lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
    const bool result = row >= STREAMS;
    // Where a lane's row lies in the first strip of the tile: of matrices to load these are eight
    // lower channels, the next eight, and the same of the upper ones; the next two follow.
    const unsigned from = result ? shared_address(shared.results[place])
                                 : shared_address(shared.stream(slot, row));
    const unsigned to = shared_address(shared.stream(slot, row % STREAMS));
    const int loaded = matrix / 2 * 4 + matrix % 2, stored = row / STREAMS * 4 + matrix;
    float2 next = OwedShares::load(shared.owed[place][first]);
#pragma unroll 1
    for (int token = first; token < first + EACH; token++) {
        const unsigned load = from + Memory::place_of(token, min(row, STREAMS), loaded);
        const unsigned store = to + Memory::place_of(token, row % STREAMS, stored);
        unsigned x[Memory::STRIPS][2][4];
#pragma unroll
        for (int strip = 0; strip < Memory::STRIPS; strip++) {
            load_columns(x[strip][0], load + strip * STRIP_BYTES);
            load_columns(x[strip][1], (load ^ 32) + strip * STRIP_BYTES);
        }
        const OwedShares shares(next);
        next = OwedShares::load(shared.owed[place][min(token + 1, TOKENS - 1)]);
#pragma unroll
        for (int strip = 0; strip < Memory::STRIPS; strip++) {
            unsigned mixed[4];
            shares.mix(x[strip][0], mixed[0], mixed[1]);
            shares.mix(x[strip][1], mixed[2], mixed[3]);
            store_columns(store + strip * STRIP_BYTES, mixed);
        }
    }
}
