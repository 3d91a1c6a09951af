// What a call is, and what lies where in a block's shared memory.
#pragma once

#include "hopper.cuh"

// Heads and keys of a tile, channels of a record, and of a chunk of it: 128 bytes of bfloat16.
constexpr int HEADS = 64, KEYS = 64, WIDTH = 512, CHUNK = 64, CHUNKS = WIDTH / CHUNK;
// Blocks of a team, in one cluster; each takes a tile of keys at a time and two chunks of the sums.
constexpr int TEAM = 4, OWN = CHUNKS / TEAM;
constexpr int MOST_TEAMS = 32;     // of a row
constexpr int MOST_TOGETHER = 3;  // of a cluster
constexpr int THREADS = 256;    // two groups of four warps, a chunk of the sums each
constexpr int GROUP = THREADS / 2;

// Numbers that products take: 64 lines of 128 bytes, swizzled.
using Tile = __nv_bfloat16[64 * CHUNK];
constexpr int TILE_BYTES = sizeof(Tile);

__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

// Keys of all rows in one pool. Without `lengths` rows have `columns` slots, -1 where there is no
// key; without columns there is no such set.
struct Keys {
    const unsigned char *pages;
    const int *slots, *lengths;
    long long slots_stride, page_bytes;
    int columns, page_rows;
    unsigned page_factor, page_shift;  // see `page_of`

    // The page of a slot, rounded down from slot / page_rows: by a factor of 2^32 times
    // 2^shift / page_rows - 1, the power being the first that is not less than page_rows.
    __device__ unsigned page_of(unsigned slot) const {
        return (__umulhi(slot, page_factor) + slot) >> page_shift;
    }
};

inline Keys keys_of(const void *pages, const int *slots, const int *lengths, long long stride,
                    long long page_bytes, int columns, int page_rows) {
    unsigned shift = 0;
    while (1ull << shift < (unsigned)page_rows) shift++;
    const unsigned long long rest = (1ull << shift) - page_rows;
    const unsigned factor = (unsigned)((rest << 32) / page_rows + (rest != 0));
    return {static_cast<const unsigned char *>(pages), slots, lengths, stride, page_bytes, columns,
            page_rows, factor, shift};
}

// q, out    [rows, heads, 512], a row of q at multiples of `q_stride` numbers
// partials  [rows, teams, TEAM, 2048, 4] means of what teams attend
// sums      [rows, teams, 64] binary logarithms of their sums of weights
// meetings  [rows]            see `meet_blocks`
// together  a row's teams are one cluster, which has a block for each tile
// scale     of scores, for powers of two
struct Call {
    Keys window, extra;
    const __nv_bfloat16 *q;
    const float *sink;
    __nv_bfloat16 *out;
    float4 *partials;
    float *sums;
    int *meetings;
    long long q_stride;
    float scale;
    int heads, teams;
    bool together;
};

// What a tile's block sends to the others of the team: weights relative to the greatest score,
// rounded up: so that what weights of tiles differ by is a power of two.
struct Weights {
    Tile p;                 // by head
    float greatest[HEADS];  // a whole number, or minus infinity
    float total[HEADS];
};
constexpr int WEIGHTS_BYTES = sizeof(Weights);

struct Shared {
    Tile queries[CHUNKS], keys[CHUNKS];
    Tile values[TEAM - 1][OWN];  // of the others' keys, those channels that are this block's
    struct alignas(1024) {
        Weights weights;
    } team[TEAM];
    float bias[KEYS];  // of scores: minus infinity where there is no key, else 0
    unsigned long long filled, summed;  // barriers: what the team sends has come, what all teams do
};
static_assert(sizeof(Shared) <= 227 * 1024);

// What all blocks of a row know of it: first as if it filled all columns and each block took one
// tile, then by its lengths.
struct Row {
    long long nth;
    int window_count, extra_count, window_tiles, tiles;
    int each = 1;   // tiles that a block takes, one after the other
    int teams = 1;  // that take tiles; at least one, which writes zeros if there is no key

    __device__ Row(const Call &call, long long nth) : nth(nth) {
        count(call.window.columns, call.extra.columns);
    }

    // Take the row's lengths; return whether each block's first tile is what it was.
    __device__ bool take(const Call &call, int window, int extra) {
        const int window_before = window_tiles;
        count(max(0, min(window, call.window.columns)), max(0, min(extra, call.extra.columns)));
        const unsigned most = call.teams * TEAM;
        if (tiles <= (int)most) {
            teams = max(1, (tiles + TEAM - 1) / TEAM);
            return window_tiles == window_before;
        }
        const unsigned most_each = (tiles + most - 1) / most, of_team = most_each * TEAM;
        each = most_each;
        teams = (tiles + of_team - 1) / of_team;
        return false;
    }

    __device__ void count(int window, int extra) {
        window_count = window;
        extra_count = extra;
        window_tiles = (window + KEYS - 1) / KEYS;
        tiles = window_tiles + (extra + KEYS - 1) / KEYS;
    }

    // Ask for a length: what is made of it must wait until all else has been asked for.
    __device__ int length_of(const Keys &keys) const {
        return keys.lengths ? read_int(keys.lengths + nth) : keys.columns;
    }
};
